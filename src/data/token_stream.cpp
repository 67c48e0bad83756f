#include "data/token_stream.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "data/encoding.hpp"
#include "data/tokenizer/parallel.hpp"

namespace llamesh::data {
namespace {

constexpr std::int64_t byte_vocabulary = 256;

std::string_view text_of(const MappedFile& mapped) {
  return {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()};
}

/// The tokenizer of `options`, opened unless there is one, and found to fit.
std::shared_ptr<const Tokenizer> fitting(std::shared_ptr<const Tokenizer> tokenizer,
                                         const std::string& name, std::int64_t vocab_size) {
  validate(name != "byte" || vocab_size >= byte_vocabulary,
           "the byte tokenizer makes ids 0 to 255, but model.vocab_size is {}; set it to 256 or "
           "more",
           vocab_size);
  if (tokenizer == nullptr) tokenizer = open_tokenizer(name);
  validate(vocab_size >= tokenizer->vocab_size(),
           "the tokenizer '{}' has a vocabulary of {}, but model.vocab_size is {}; set it to {} or "
           "more",
           name, tokenizer->vocab_size(), vocab_size, tokenizer->vocab_size());
  return tokenizer;
}

MadeIds make_text(std::string_view text, const Tokenizer& tokenizer, std::int64_t vocab_size) {
  MadeIds made(vocab_size);
  encode_documents(tokenizer, {&text, 1}, available_threads(),
                   [&](auto ids, std::size_t) { made.append(ids); });
  return made;
}

}  // namespace

void check_text_size(const DataOptions& options, std::span<const std::string> files) {
  constexpr std::size_t most_bytes = std::size_t{1} << 30;
  if (!is_text(options.format)) return;
  if (options.format == Format::text && options.tokenizer == "byte") return;  // stays mapped
  std::size_t bytes = 0;
  for (const std::string& path : files) bytes += MappedFile(path).bytes().size();
  validate(
      bytes <= most_bytes,
      "{} bytes of text are too much to tokenize at every start (the limit is {}); run `llamesh "
      "tokenize` once, and give its output with data.format: tokens",
      bytes, most_bytes);
}

TokenStream::TokenStream(const DataOptions& options, std::span<const std::string> files,
                         std::int64_t vocab_size, std::shared_ptr<const Tokenizer> tokenizer)
    : options_(options), vocab_size_(vocab_size) {
  validate(!files.empty(), "no data files are given; name at least one in data.train");
  check_documents_are_known();
  if (is_text(options.format)) {
    tokenizer = fitting(std::move(tokenizer), options.tokenizer, vocab_size);
    check_text_size(options, files);
  }
  for (const std::string& path : files) open(path, tokenizer.get());
}

void TokenStream::check_documents_are_known() const {
  if (!options_.document_mask || options_.format != Format::tokens) return;
  validate(options_.eos_token >= 0,
           "data.document_mask needs to know where the documents of token files end; name the id "
           "in data.eos_token");
  validate(options_.eos_token < vocab_size_,
           "data.eos_token is {}, but model.vocab_size is {}, so no token can have it",
           options_.eos_token, vocab_size_);
}

void TokenStream::open(const std::string& path, const Tokenizer* tokenizer) {
  File file;
  file.path = path;
  if (options_.format == Format::megatron) {
    file.megatron.emplace(path);
    file.path = file.megatron->path();
    file.ids = file.megatron->ids();
  } else {
    MappedFile mapped(path);
    if (options_.format == Format::jsonl) {
      file.made = make_jsonl(text_of(mapped), path, *tokenizer);
    } else if (options_.format == Format::tokens) {
      file.ids = ids_of_token_file(mapped, options_.token_dtype);
    } else {
      documents_.push_back(size_);
      if (options_.tokenizer == "byte")
        file.ids = IdArray(mapped.bytes(), 1);
      else
        file.made = make_text(text_of(mapped), *tokenizer, vocab_size_);
    }
    if (file.made)
      file.ids = file.made->ids();
    else
      file.mapped = std::move(mapped);
  }
  file.begin = size_;
  size_ += file.ids.size();
  files_.push_back(std::move(file));
}

MadeIds TokenStream::make_jsonl(std::string_view text, const std::string& path,
                                const Tokenizer& tokenizer) {
  MadeIds made(vocab_size_);
  const auto marks = document_marks(tokenizer, options_.tokenizer);
  encode_jsonl(tokenizer, marks, text, path, available_threads(),
               [&](const EncodedDocument& document, std::string_view, const LineNumber&) {
                 const std::int64_t begin = size_ + made.size();
                 documents_.push_back(begin);
                 for (const std::int64_t edge : document.uncounted)
                   uncounted_.push_back(begin + edge);
                 made.append(document.ids);
               });
  validate(made.size() > 0, "data file '{}' has no line with a document", path);
  return made;
}

const TokenStream::File& TokenStream::file_of(std::int64_t token) const {
  return *(std::ranges::upper_bound(files_, token, {}, &File::begin) - 1);
}

void TokenStream::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  expects(begin >= 0 && count <= size_ && begin <= size_ - count,
          "tokens [{}, {} + {}) of a stream of {}", begin, begin, count, size_);
  while (!out.empty()) {
    const File& file = file_of(begin);
    const std::int64_t first = begin - file.begin;
    const auto part = out.first(static_cast<std::size_t>(
        std::min(file.ids.size() - first, static_cast<std::int64_t>(out.size()))));
    // The second test guards ids that do not fit into int32 at all.
    const std::uint32_t largest = file.ids.widen(first, part);
    if (largest >= vocab_size_ || largest > std::numeric_limits<std::int32_t>::max())
      fail_outside_vocabulary(file, first, static_cast<std::int64_t>(part.size()));
    out = out.subspan(part.size());
    begin += static_cast<std::int64_t>(part.size());
  }
}

void TokenStream::ignore_uncounted(std::int64_t begin, std::span<std::int32_t> targets) const {
  const std::int64_t end = begin + static_cast<std::int64_t>(targets.size());
  auto edge =
      static_cast<std::size_t>(std::ranges::upper_bound(uncounted_, begin) - uncounted_.begin());
  edge -= edge % 2;  // the range that holds `begin`, or the next one
  for (; edge < uncounted_.size() && uncounted_[edge] < end; edge += 2) {
    const std::int64_t first = std::max(uncounted_[edge], begin) - begin;
    const std::int64_t last = std::min(uncounted_[edge + 1], end) - begin;
    std::fill(targets.begin() + first, targets.begin() + last, ignored_target);
  }
}

std::int64_t TokenStream::next_document(std::int64_t from, std::int64_t limit) const {
  expects(from >= 1 && limit <= size_ && masks_documents(), "documents in [{}, {}) of {}", from,
          limit, size_);
  if (from >= limit) return limit;
  if (is_text(options_.format)) {
    const auto found = std::ranges::lower_bound(documents_, from);
    return found == documents_.end() ? limit : std::min(*found, limit);
  }
  const bool by_eos = options_.format == Format::tokens;
  const auto eos = static_cast<std::uint32_t>(options_.eos_token);
  const std::int64_t shift = by_eos ? 1 : 0;  // a document begins behind an EOS
  for (std::int64_t at = from - shift; at < limit - shift;) {
    const File& file = file_of(at);
    const std::int64_t end = std::min(file.begin + file.ids.size(), limit - shift);
    const std::int64_t begin =
        file.begin + (by_eos ? file.ids.find(eos, at - file.begin, end - file.begin)
                             : file.megatron->next_document(at - file.begin));
    if (begin < end) return begin + shift;
    at = end;
  }
  return limit;
}

void TokenStream::fail_outside_vocabulary(const File& file, std::int64_t first,
                                          std::int64_t count) const {
  const std::int64_t limit = std::min<std::int64_t>(
      vocab_size_, std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1);
  std::int64_t at = first;
  while (at < first + count && file.ids[at] < limit) ++at;
  fail(ExitCode::bad_input,
       "token {} of '{}' has id {}, but model.vocab_size is {}; the file was made with another "
       "tokenizer, or data.token_dtype is wrong",
       at, file.path, file.ids[at], vocab_size_);
}

void TokenStream::add_uncounted(RunningHash& hash, const File& file) const {
  const std::int64_t end = file.begin + file.ids.size();
  auto edge = static_cast<std::size_t>(std::ranges::lower_bound(uncounted_, file.begin) -
                                       uncounted_.begin());
  edge += edge % 2;  // a range of the file before may end where this one begins
  for (; edge < uncounted_.size() && uncounted_[edge] < end; edge += 2) {
    const std::array<std::int64_t, 2> range = {uncounted_[edge] - file.begin,
                                               uncounted_[edge + 1] - file.begin};
    hash.add(range.data(), sizeof(range));
  }
}

std::vector<FilePrint> TokenStream::prints(std::size_t piece_bytes) const {
  std::vector<FilePrint> prints;
  for (const File& file : files_) {
    RunningHash hash;
    if (file.made)
      hash.add(file.ids.bytes().data(), file.ids.bytes().size());
    else
      add_sample(hash, file.ids.bytes(), piece_bytes);
    if (file.megatron) add_sample(hash, file.megatron->index_bytes(), piece_bytes);
    add_uncounted(hash, file);
    prints.push_back({file.path, file.ids.size(), hash.value()});
  }
  return prints;
}

std::string TokenStream::describe() const {
  const std::string& first = files_.front().path;
  return files_.size() == 1 ? fmt::format("'{}'", first)
                            : fmt::format("'{}' and {} more", first, files_.size() - 1);
}

}  // namespace llamesh::data
