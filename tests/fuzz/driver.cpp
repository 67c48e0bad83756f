// Runs a fuzz target without libFuzzer: first a corpus' files unchanged, then mutations with a
// fixed seed. Prints each input first, so that the last line names the one that broke the target.
//   TARGET MUTATIONS SEED FILE...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

/// Building blocks of the formats.
const std::vector<std::string> words = {
    "{",  "}",     "[",     "]",    "\"",    ":",          ",",       "null",    "true", "false",
    "-1", "1e308", "0",     "255",  "65536", "4294967296", "\\u0000", "\\ud800", "\xff", "\"\"",
    "{}", "[[[[",  "a b c", "(?i:", "(a+)+", "\\\\p{L}",   "*",       "<0x00>"};

class Mutator {
 public:
  Mutator(std::vector<std::string> corpus, std::uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  std::string next() {
    std::string text = corpus_[below(corpus_.size())];
    for (std::size_t i = 0, changes = 1 + below(4); i < changes; ++i) change(text);
    return text;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void change(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t count = std::min(text.size() - at, std::size_t{1} << below(9));
    switch (below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 1:
        text.erase(at, count);
        break;
      case 2:
        text.insert(at, text.substr(at, count));
        break;
      case 3:
        text.insert(at, words[below(words.size())]);
        break;
      case 4:
        text.replace(at, std::min<std::size_t>(count, 8), words[below(words.size())]);
        break;
      default: {
        const std::string& other = corpus_[below(corpus_.size())];
        text.replace(at, count, other.substr(below(other.size()), count));
      }
    }
  }

  std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

int run(const std::string& input) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MUTATIONS SEED FILE...\n", argv[0]);
    return 2;
  }
  std::vector<std::string> corpus;
  for (int i = 3; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (corpus.back().empty()) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 2;
    }
    std::printf("%s\n", argv[i]);
    run(corpus.back());
  }
  const long mutations = std::atol(argv[1]);
  Mutator mutator(corpus, std::strtoull(argv[2], nullptr, 10));
  for (long i = 0; i < mutations; ++i) {
    const std::string input = mutator.next();
    std::printf("seed %s, mutation %ld, %zu bytes\n", argv[2], i, input.size());
    std::fflush(stdout);
    run(input);
  }
  return 0;
}
