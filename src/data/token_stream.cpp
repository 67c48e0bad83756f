#include "data/token_stream.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace llamesh::data {
namespace {

constexpr std::int64_t random_stream_size = std::int64_t{1} << 40;  // then it begins again

/// Writes tokens [first, first + out.size()) from an endless stream of ids below `vocab_size`.
/// Token i is a function of (seed, vocab_size, i) only: Philox's word i times vocab_size / 2^32
/// (uniform to within vocab_size / 2^32).
void draw_tokens(std::uint64_t seed, std::int64_t vocab_size, std::int64_t first,
                 std::span<std::int32_t> out) {
  const std::uint64_t key = seed ^ name_hash("random tokens");
  const auto begin = static_cast<std::uint64_t>(first);
  auto words = philox(key, 0, begin / 4);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t at = begin + i;
    if (i > 0 && at % 4 == 0) words = philox(key, 0, at / 4);
    out[i] =
        static_cast<std::int32_t>((words[at % 4] * static_cast<std::uint64_t>(vocab_size)) >> 32U);
  }
}

}  // namespace

TokenStream::TokenStream(const DataOptions& options, std::span<const std::string> files,
                         std::int64_t vocab_size, std::optional<TokenizedText> tokenized)
    : options_(options), vocab_size_(vocab_size), tokenized_(std::move(tokenized)) {
  check_documents_are_known();
  if (is_random()) {
    size_ = random_stream_size;
    return;
  }
  validate(!files.empty(), "no data files are given; name at least one in data.train");
  if (is_text(options.format) && !tokenized_) {
    const auto tokenizer = open_fitting_tokenizer(options.tokenizer, vocab_size);
    if (is_tokenized(options)) tokenized_.emplace(options, files, vocab_size, *tokenizer);
  }
  if (tokenized_)
    take_tokenized(files);
  else
    for (const std::string& path : files) open(path);
}

void TokenStream::take_tokenized(std::span<const std::string> files) {
  const auto ends = tokenized_->file_ends();
  expects(is_tokenized(options_) && ends.size() == files.size(), "{} files tokenized as {}",
          files.size(), ends.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    files_.push_back(
        {.path = files[i], .ids = tokenized_->ids().slice(size_, ends[i] - size_), .begin = size_});
    size_ = ends[i];
  }
}

void TokenStream::check_documents_are_known() const {
  if (!knows_documents() || (options_.format != Format::tokens && !is_random())) return;
  validate(options_.eos_token >= 0, "data.{} needs the id that ends a document; set data.eos_token",
           options_.document_mask ? "document_mask" : "packing");
  validate(options_.eos_token < vocab_size_,
           "data.eos_token is {}, but ids must be below model.vocab_size {}", options_.eos_token,
           vocab_size_);
}

void TokenStream::open(const std::string& path) {
  validate(!is_loss_mask(path), "'{}' is a loss mask; name the token file beside it", path);
  File file{.path = path, .begin = size_};
  if (options_.format == Format::megatron) {
    file.megatron.emplace(path);
    file.path = file.megatron->path();
    file.ids = file.megatron->ids();
  } else {
    MappedFile mapped(path);
    file.ids = options_.format == Format::tokens
                   ? ids_of_token_file(mapped.bytes(), path, options_.token_dtype)
                   : IdArray(mapped.bytes(), 1);
    file.mapped = std::move(mapped);
  }
  if (!is_text(options_.format)) open_mask(file);
  size_ += file.ids.size();
  files_.push_back(std::move(file));
}

void TokenStream::open_mask(File& file) {
  file.mask = LossMask::beside(file.path, file.ids.size());
  validate(file.mask || !file.mapped || !promises_loss_mask(file.mapped->bytes()),
           "'{}' was written with a loss mask, but '{}' is missing; copy it too", file.path,
           loss_mask_path(file.path));
  has_masks_ |= file.mask.has_value();
}

void TokenStream::File::check() const {
  if (mapped) mapped->check();
  if (megatron) megatron->check();
  if (mask) mask->check();
}

const TokenStream::File& TokenStream::file_of(std::int64_t token) const {
  return *(std::ranges::upper_bound(files_, token, {}, &File::begin) - 1);
}

void TokenStream::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  expects(begin >= 0 && count <= size_ && begin <= size_ - count,
          "tokens [{}, {} + {}) of a stream of {}", begin, begin, count, size_);
  if (is_random()) return draw_tokens(options_.seed, vocab_size_, begin, out);
  while (!out.empty()) {
    const File& file = file_of(begin);
    const std::int64_t first = begin - file.begin;
    const auto part = out.first(static_cast<std::size_t>(
        std::min(file.ids.size() - first, static_cast<std::int64_t>(out.size()))));
    // The second test catches ids that do not fit into int32 at all.
    const std::uint32_t largest = file.ids.widen(first, part);
    file.check();
    if (largest >= vocab_size_ || largest > std::numeric_limits<std::int32_t>::max())
      fail_outside_vocabulary(file, first, static_cast<std::int64_t>(part.size()));
    out = out.subspan(part.size());
    begin += static_cast<std::int64_t>(part.size());
  }
}

void TokenStream::mask_targets(std::int64_t begin, std::span<std::int32_t> targets) const {
  if (!tokenized_) return apply_masks(begin, targets);
  const auto ranges = tokenized_->masked_ranges();
  const std::int64_t end = begin + static_cast<std::int64_t>(targets.size());
  auto edge = static_cast<std::size_t>(std::ranges::upper_bound(ranges, begin) - ranges.begin());
  edge -= edge % 2;  // the range that holds `begin`, or the next one
  for (; edge < ranges.size() && ranges[edge] < end; edge += 2) {
    const std::int64_t first = std::max(ranges[edge], begin) - begin;
    const std::int64_t last = std::min(ranges[edge + 1], end) - begin;
    std::fill(targets.begin() + first, targets.begin() + last, ignored_target);
  }
}

void TokenStream::apply_masks(std::int64_t begin, std::span<std::int32_t> targets) const {
  while (has_masks_ && !targets.empty()) {
    const File& file = file_of(begin);
    const std::int64_t first = begin - file.begin;
    const auto part = targets.first(static_cast<std::size_t>(
        std::min(file.ids.size() - first, static_cast<std::int64_t>(targets.size()))));
    if (file.mask) {
      file.mask->apply(first, part);
      file.check();
    }
    targets = targets.subspan(part.size());
    begin += static_cast<std::int64_t>(part.size());
  }
}

std::int64_t TokenStream::next_target(std::int64_t from, std::int64_t limit) const {
  expects(from >= 1 && limit <= size_, "targets in [{}, {}) of {}", from, limit, size_);
  std::int64_t at = next_unmasked(from, limit);
  while (options_.document_mask && at < limit && next_document(at, at + 1) == at)
    at = next_unmasked(at + 1, limit);
  return at;
}

std::int64_t TokenStream::next_unmasked(std::int64_t from, std::int64_t limit) const {
  if (tokenized_) {
    const auto ranges = tokenized_->masked_ranges();
    auto edge = static_cast<std::size_t>(std::ranges::upper_bound(ranges, from) - ranges.begin());
    if (edge % 2 == 0) return std::min(from, limit);
    // A document may end with a masked range, and the next one begin with another.
    while (edge + 1 < ranges.size() && ranges[edge + 1] == ranges[edge]) edge += 2;
    return std::min(ranges[edge], limit);
  }
  while (has_masks_ && from < limit) {
    const File& file = file_of(from);
    if (!file.mask) return from;
    const std::int64_t end = std::min(file.begin + file.ids.size(), limit);
    const std::int64_t found =
        file.begin + file.mask->next_counted(from - file.begin, end - file.begin);
    file.check();
    if (found < end) return found;
    from = end;
  }
  return std::min(from, limit);
}

std::size_t TokenStream::masked_files() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(files_, [](const File& file) { return file.mask.has_value(); }));
}

std::int64_t TokenStream::next_document(std::int64_t from, std::int64_t limit) const {
  expects(from >= 1 && limit <= size_ && (knows_documents() || tokenized_),
          "documents in [{}, {}) of {}", from, limit, size_);
  if (from >= limit) return limit;
  if (is_random()) return next_random_document(from, limit);
  if (tokenized_) {
    const auto documents = tokenized_->documents();
    const auto found = std::ranges::lower_bound(documents, from);
    return found == documents.end() ? limit : std::min(*found, limit);
  }
  if (is_text(options_.format)) {  // a file is a document
    const auto found = std::ranges::lower_bound(files_, from, {}, &File::begin);
    return found == files_.end() ? limit : std::min(found->begin, limit);
  }
  const bool by_eos = options_.format == Format::tokens;
  const auto eos = static_cast<std::uint32_t>(options_.eos_token);
  const std::int64_t shift = by_eos ? 1 : 0;  // a document begins after an EOS
  for (std::int64_t at = from - shift; at < limit - shift;) {
    const File& file = file_of(at);
    const std::int64_t end = std::min(file.begin + file.ids.size(), limit - shift);
    const std::int64_t begin =
        file.begin + (by_eos ? file.ids.find(eos, at - file.begin, end - file.begin)
                             : file.megatron->next_document(at - file.begin));
    file.check();
    if (begin < end) return begin + shift;
    at = end;
  }
  return limit;
}

std::int64_t TokenStream::document_at(std::int64_t begin) const {
  const auto documents = tokenized_->documents();
  const auto found = std::ranges::lower_bound(documents, begin);
  expects(found != documents.end() && *found == begin, "no document begins at token {}", begin);
  return found - documents.begin();
}

std::int64_t TokenStream::next_random_document(std::int64_t from, std::int64_t limit) const {
  std::vector<std::int32_t> before(static_cast<std::size_t>(limit - from));
  read(from - 1, before);
  return from + (std::ranges::find(before, options_.eos_token) - before.begin());
}

void TokenStream::fail_outside_vocabulary(const File& file, std::int64_t first,
                                          std::int64_t count) const {
  const std::int64_t limit = std::min<std::int64_t>(
      vocab_size_, std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1);
  std::int64_t at = first;
  while (at < first + count && file.ids[at] < limit) ++at;
  fail(ExitCode::bad_input,
       "token {} of '{}' has id {}, but model.vocab_size is {}; the file was made with another "
       "tokenizer{}",
       at, file.path, file.ids[at], vocab_size_,
       options_.token_dtype == TokenDtype::from_header
           ? ""
           : ", or its dtype (data.token_dtype, --token-dtype) is wrong");
}

void TokenStream::add_masked_ranges(RunningHash& hash, const File& file) const {
  if (!tokenized_) return;
  const auto ranges = tokenized_->masked_ranges();
  const std::int64_t end = file.begin + file.ids.size();
  auto edge =
      static_cast<std::size_t>(std::ranges::lower_bound(ranges, file.begin) - ranges.begin());
  edge += edge % 2;  // the previous file's range may end where this one begins
  for (; edge < ranges.size() && ranges[edge] < end; edge += 2) {
    const std::array<std::int64_t, 2> range = {ranges[edge] - file.begin,
                                               ranges[edge + 1] - file.begin};
    hash.add(range.data(), sizeof(range));
  }
}

std::vector<FileFingerprint> TokenStream::file_fingerprints(std::size_t piece_bytes) const {
  std::vector<FileFingerprint> fingerprints;
  if (is_random()) {
    const std::string name = describe();  // includes everything that the tokens depend on
    fingerprints.push_back({name, size_, hash_of(name.data(), name.size())});
  }
  for (const File& file : files_) {
    RunningHash hash;
    if (tokenized_)
      hash.add(file.ids.bytes().data(), file.ids.bytes().size());
    else
      add_sample(hash, file.ids.bytes(), piece_bytes);
    if (file.megatron) add_sample(hash, file.megatron->index_bytes(), piece_bytes);
    if (file.mask) add_sample(hash, file.mask->bytes(), piece_bytes);
    add_masked_ranges(hash, file);
    file.check();
    fingerprints.push_back({file.path, file.ids.size(), hash.value()});
  }
  return fingerprints;
}

std::string TokenStream::describe() const {
  if (is_random())
    return fmt::format("random tokens (seed {}, vocabulary {})", options_.seed, vocab_size_);
  const std::string& first = files_.front().path;
  return files_.size() == 1 ? fmt::format("'{}'", first)
                            : fmt::format("'{}' and {} more", first, files_.size() - 1);
}

}  // namespace llamesh::data
