#include "app/tokenize.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "core/error.hpp"
#include "data/mapped_file.hpp"
#include "data/token_file.hpp"
#include "data/tokenizer/parallel.hpp"
#include "train/progress.hpp"

namespace llamesh::app {
namespace {

/// The documents of one text; empty ones are left out.
void split(std::string_view text, const std::string& separator,
           std::vector<std::string_view>& documents) {
  while (!text.empty()) {
    const std::size_t end = separator.empty() ? text.npos : text.find(separator);
    if (end != 0) documents.push_back(text.substr(0, end));
    if (end == text.npos) break;
    text.remove_prefix(end + separator.size());
  }
}

struct Texts {
  std::vector<data::MappedFile> files;
  std::vector<std::string_view> documents;
  std::size_t bytes = 0;
};

Texts open_texts(const TokenizeArguments& arguments) {
  Texts texts;
  for (const std::string& path : arguments.inputs) {
    validate(std::filesystem::exists(path), "--input: there is no file '{}'", path);
    const auto bytes = texts.files.emplace_back(path).bytes();
    texts.bytes += bytes.size();
    split({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, arguments.separator,
          texts.documents);
  }
  return texts;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int tokenize(const TokenizeArguments& arguments) {
  const auto tokenizer = data::open_tokenizer(arguments.tokenizer);
  const Texts texts = open_texts(arguments);
  const int threads = arguments.threads > 0 ? arguments.threads : data::available_threads();
  data::TokenFileWriter output(arguments.output, tokenizer->vocab_size());
  const auto start = std::chrono::steady_clock::now();
  std::size_t bytes = 0;
  {
    constexpr std::int64_t steps = 100;
    train::Progress progress(0, steps, steps / 10);
    std::int64_t shown = 0;
    data::encode_documents(
        *tokenizer, texts.documents, threads, [&](auto ids, std::size_t text_bytes) {
          output.append(ids);
          bytes += text_bytes;
          const auto step = static_cast<std::int64_t>(100.0 * static_cast<double>(bytes) /
                                                      static_cast<double>(texts.bytes));
          if (step == shown) return;
          shown = step;
          const double seconds = seconds_since(start);
          progress.show(step,
                        fmt::format("{:3} %  {} tokens  {:.1f} MB/s", step, output.tokens(),
                                    static_cast<double>(bytes) / 1e6 / seconds),
                        seconds);
        });
  }
  output.commit();
  const double seconds = seconds_since(start);
  fmt::print(
      "{}: {} tokens (uint{}, vocabulary {}) of {} documents, {} bytes; {:.1f} s, {:.3g} tokens/s, "
      "{:.1f} MB/s with {} threads\n",
      arguments.output, output.tokens(), output.bits(), tokenizer->vocab_size(),
      texts.documents.size(), bytes, seconds, static_cast<double>(output.tokens()) / seconds,
      static_cast<double>(bytes) / 1e6 / seconds, threads);
  return 0;
}

}  // namespace llamesh::app
