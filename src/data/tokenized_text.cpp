#include "data/tokenized_text.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "data/encode_jsonl.hpp"
#include "data/mapped_file.hpp"
#include "data/marked_text.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {
namespace {

constexpr std::int64_t byte_vocabulary = 256;
constexpr std::size_t word = sizeof(std::int64_t);

std::string_view text_of(const MappedFile& mapped) {
  return {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()};
}

/// Contents of the block while it grows.
struct Tokens {
  TokenBuffer ids;
  std::vector<std::int64_t> file_ends = {};
  std::vector<std::int64_t> documents = {};
  std::vector<std::int64_t> masked_ranges = {};
};

void add_text(Tokens& tokens, std::string_view text, const tokenizer::Tokenizer& tokenizer) {
  tokens.documents.push_back(tokens.ids.size());
  tokenizer::encode_documents(tokenizer, {&text, 1}, tokenizer::available_threads(),
                              [&](auto ids, std::size_t, auto) { tokens.ids.append(ids); });
}

/// Logs a document as the model reads it, on one line.
void log_example(const tokenizer::Tokenizer& tokenizer, const EncodedDocument& document,
                 const LineNumber& where, const char* what) {
  constexpr std::size_t longest = 1000;  // bytes
  std::string line;
  for (const char c : marked_text(tokenizer, document))
    line += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
  const bool is_cut = line.size() > longest;
  if (is_cut) line.resize(valid_utf8_prefix(line.substr(0, longest)));
  spdlog::info("{}, {} in {{+ +}}: {}{}", where, what, line, is_cut ? "..." : "");
}

/// Finds pairs that do not fit into a sequence.
class LongPairs {
 public:
  explicit LongPairs(std::int64_t sequence_length) : limit_(sequence_length + 1) {}
  void add(std::int64_t tokens, const LineNumber& where) {
    if (tokens <= limit_) return;
    if (++count_ == 1) first_ = fmt::format("{}: the pair has {} tokens", where, tokens);
    longest_ = std::max(longest_, tokens);
  }
  /// Throws a user error if there are some.
  void check() const {
    validate(count_ == 0,
             "{}, prompts included, and a sequence takes both answers whole, {} tokens; set "
             "data.sequence_length to {}, or remove {}",
             first_, limit_, longest_ - 1,
             count_ == 1 ? "it" : fmt::format("all {} such pairs", count_));
  }

 private:
  std::int64_t limit_, count_ = 0, longest_ = 0;
  std::string first_;
};

void add_jsonl(Tokens& tokens, std::string_view text, const std::string& path,
               const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
               std::int64_t sequence_length) {
  const std::int64_t before = tokens.ids.size();
  const bool pairs = special.conversations.pairs;
  JsonlSummary summary(pairs);
  LongPairs too_long(sequence_length);
  encode_jsonl(
      tokenizer, special, text, path, tokenizer::available_threads(),
      [&](const EncodedDocument& document, std::string_view, const LineNumber& where) {
        const std::int64_t begin = tokens.ids.size();
        const bool is_second = pairs && tokens.documents.size() % 2 == 1;
        if (tokens.documents.size() <= (is_second ? 1 : 0) && !document.masked_ranges.empty())
          log_example(tokenizer, document, where,
                      !pairs      ? "what is learned"
                      : is_second ? "the rejected answer"
                                  : "the preferred answer");
        if (is_second)
          too_long.add(begin - tokens.documents.back() + std::ssize(document.ids), where);
        summary.add(document);
        tokens.documents.push_back(begin);
        for (const std::int64_t edge : document.masked_ranges)
          tokens.masked_ranges.push_back(begin + edge);
        tokens.ids.append(document.ids);
      });
  validate(tokens.ids.size() > before, "data file '{}' contains no document", path);
  too_long.check();
  spdlog::info("'{}': {}", path, summary.text());
}

}  // namespace

void check_text_size(const DataOptions& options, std::span<const std::string> files) {
  constexpr std::size_t max_bytes = std::size_t{1} << 30;
  if (!is_tokenized(options)) return;
  std::size_t bytes = 0;
  for (const std::string& path : files) bytes += MappedFile(path).bytes().size();
  validate(bytes <= max_bytes,
           "{} bytes of text are too much to tokenize at every launch (at most {}); run `llamesh "
           "tokenize` once and train on its output",
           bytes, max_bytes);
}

std::shared_ptr<const tokenizer::Tokenizer> open_fitting_tokenizer(const std::string& name,
                                                                   std::int64_t vocab_size) {
  validate(name != "byte" || vocab_size >= byte_vocabulary,
           "the byte tokenizer makes ids 0 to 255, but model.vocab_size is {}; set it to 256 or "
           "more",
           vocab_size);
  auto tokenizer = tokenizer::open_tokenizer(name);
  validate(vocab_size >= tokenizer->vocab_size(),
           "the tokenizer '{}' has a vocabulary of {}, but model.vocab_size is {}; set it to {} or "
           "more",
           name, tokenizer->vocab_size(), vocab_size, tokenizer->vocab_size());
  return tokenizer;
}

/// Last bytes of the block. Before it come the ids, padded to a whole word, and the lists, in the
/// order of their counts here.
struct TokenizedText::Footer {
  std::int64_t id_bytes;
  std::int64_t bytes_of_ids;
  std::int64_t files;
  std::int64_t documents;
  std::int64_t masked_ranges;
  std::uint64_t vocabulary_hash;
};

TokenizedText::TokenizedText(const DataOptions& options, std::span<const std::string> files,
                             std::int64_t vocab_size, const tokenizer::Tokenizer& tokenizer) {
  check_text_size(options, files);
  Tokens tokens{.ids = TokenBuffer(vocab_size)};
  DocumentTokens special;
  if (options.format == Format::jsonl) special = document_tokens(tokenizer, options);
  for (const std::string& path : files) {
    const MappedFile mapped(path);
    if (options.format == Format::jsonl)
      add_jsonl(tokens, text_of(mapped), path, tokenizer, special, options.sequence_length);
    else
      add_text(tokens, text_of(mapped), tokenizer);
    mapped.check();
    tokens.file_ends.push_back(tokens.ids.size());
  }
  const Footer end{.id_bytes = tokens.ids.ids().id_bytes(),
                   .bytes_of_ids = static_cast<std::int64_t>(tokens.ids.ids().bytes().size()),
                   .files = std::ssize(tokens.file_ends),
                   .documents = std::ssize(tokens.documents),
                   .masked_ranges = std::ssize(tokens.masked_ranges),
                   .vocabulary_hash = tokenizer.vocabulary_hash()};
  auto block = std::make_shared<std::vector<std::uint8_t>>(std::move(tokens.ids).take());
  block->resize((block->size() + word - 1) / word * word);
  const auto append = [&](const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    block->insert(block->end(), from, from + bytes);
  };
  for (const auto* list : {&tokens.file_ends, &tokens.documents, &tokens.masked_ranges})
    append(list->data(), list->size() * word);
  append(&end, sizeof(end));
  bytes_ = *block;
  owner_ = std::move(block);
}

TokenizedText::TokenizedText(std::shared_ptr<const void> owner, std::span<const std::uint8_t> bytes)
    : owner_(std::move(owner)), bytes_(bytes) {
  expects(bytes.size() >= sizeof(Footer), "tokens in {} bytes", bytes.size());
}

TokenizedText::Footer TokenizedText::footer() const {
  Footer end;
  std::memcpy(&end, bytes_.data() + bytes_.size() - sizeof(end), sizeof(end));
  return end;
}

IdArray TokenizedText::ids() const {
  const Footer end = footer();
  return {bytes_.first(static_cast<std::size_t>(end.bytes_of_ids)), end.id_bytes};
}

std::span<const std::int64_t> TokenizedText::numbers(std::int64_t first, std::int64_t count) const {
  const Footer end = footer();
  const auto* lists =
      reinterpret_cast<const std::int64_t*>(bytes_.data() + bytes_.size() - sizeof(Footer)) -
      (end.files + end.documents + end.masked_ranges);
  return {lists + first, static_cast<std::size_t>(count)};
}

std::span<const std::int64_t> TokenizedText::file_ends() const {
  return numbers(0, footer().files);
}
std::span<const std::int64_t> TokenizedText::documents() const {
  return numbers(footer().files, footer().documents);
}
std::span<const std::int64_t> TokenizedText::masked_ranges() const {
  return numbers(footer().files + footer().documents, footer().masked_ranges);
}
std::uint64_t TokenizedText::vocabulary_hash() const {
  return footer().vocabulary_hash;
}

}  // namespace llamesh::data
