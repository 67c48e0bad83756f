#include "data/token_stream.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "data/tokenizer.hpp"
#include "data/tokenizer/parallel.hpp"

namespace llamesh::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::int64_t byte_vocabulary = 256;
constexpr std::size_t header_bytes = 256 * sizeof(std::int32_t);

std::string_view text_of(const MappedFile& mapped) {
  return {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()};
}

/// The two headers of llm.c.
struct Header {
  std::int32_t magic;
  std::int32_t version;
  std::int64_t token_bytes;
};
constexpr Header known_headers[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/// One unaligned little-endian number.
template <class T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// Widens `out.size()` ids of type T; returns the largest.
template <class T>
std::uint32_t widen(const std::uint8_t* ids, std::span<std::int32_t> out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint32_t id = load<T>(ids + i * sizeof(T));
    largest = std::max(largest, id);
    out[i] = static_cast<std::int32_t>(id);
  }
  return largest;
}

std::uint32_t id_at(const std::uint8_t* ids, std::int64_t token_bytes, std::int64_t i) {
  const std::uint8_t* at = ids + i * token_bytes;
  return token_bytes == 1   ? load<std::uint8_t>(at)
         : token_bytes == 2 ? load<std::uint16_t>(at)
                            : load<std::uint32_t>(at);
}

const Header* find_header(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < sizeof(std::int32_t)) return nullptr;
  const auto magic = load<std::int32_t>(bytes.data());
  const auto* found = std::ranges::find(known_headers, magic, &Header::magic);
  return found == std::end(known_headers) ? nullptr : found;
}

/// Checks the header and that the file is as long as it says.
void check_header(const std::string& path, std::span<const std::uint8_t> bytes,
                  const Header& header) {
  validate(bytes.size() >= header_bytes,
           "token file '{}' is cut off: {} bytes, but its header alone has {}", path, bytes.size(),
           header_bytes);
  const auto version = load<std::int32_t>(bytes.data() + 4);
  validate(version == header.version,
           "token file '{}' has version {} in its header; with magic {} version {} is known", path,
           version, header.magic, header.version);
  const std::int64_t count = load<std::int32_t>(bytes.data() + 8);
  validate(count > 0, "token file '{}' says in its header that it holds {} tokens", path, count);
  const std::int64_t expected =
      static_cast<std::int64_t>(header_bytes) + count * header.token_bytes;
  validate(static_cast<std::int64_t>(bytes.size()) == expected,
           "token file '{}' is {}: its header promises {} tokens, which makes {} bytes, but it has "
           "{}; write it again",
           path, static_cast<std::int64_t>(bytes.size()) < expected ? "cut off" : "too long", count,
           expected, bytes.size());
}

}  // namespace

TokenStream::TokenStream(const DataOptions& options, std::span<const std::string> files,
                         std::int64_t vocab_size)
    : vocab_size_(vocab_size) {
  validate(!files.empty(), "no data files are given; name at least one in data.train");
  if (options.format == Format::text && options.tokenizer != "byte") {
    add_text(options.tokenizer, files);
    return;
  }
  const bool text = options.format == Format::text;
  validate(!text || vocab_size >= byte_vocabulary,
           "the byte tokenizer makes ids 0 to 255, but model.vocab_size is {}; set it to 256 or "
           "more",
           vocab_size);
  for (const std::string& path : files) {
    MappedFile mapped(path);
    const auto bytes = mapped.bytes();
    add(text ? File{std::move(mapped), 1, bytes, 0, {}}
             : open_tokens(std::move(mapped), options.token_dtype));
  }
}

void TokenStream::add(File file) {
  file.begin = size_;
  size_ += file.count();
  files_.push_back(std::move(file));
}

void TokenStream::add_text(const std::string& name, std::span<const std::string> files) {
  constexpr std::size_t most_bytes = std::size_t{1} << 30;
  const auto tokenizer = open_tokenizer(name);
  validate(vocab_size_ >= tokenizer->vocab_size(),
           "the tokenizer '{}' has a vocabulary of {}, but model.vocab_size is {}; set it to {} or "
           "more",
           name, tokenizer->vocab_size(), vocab_size_, tokenizer->vocab_size());
  std::vector<MappedFile> texts;
  std::size_t bytes = 0;
  for (const std::string& path : files) bytes += texts.emplace_back(path).bytes().size();
  validate(
      bytes <= most_bytes,
      "{} bytes of text are too much to tokenize at every start (the limit is {}); run `llamesh "
      "tokenize` once, and give its output with data.format: tokens",
      bytes, most_bytes);
  for (MappedFile& mapped : texts) {
    const auto text = text_of(mapped);
    File file{std::move(mapped), sizeof(std::int32_t), {}, 0, {}};
    encode_documents(*tokenizer, {&text, 1}, available_threads(), [&](auto ids, std::size_t) {
      file.made.insert(file.made.end(), ids.begin(), ids.end());
    });
    file.ids = {reinterpret_cast<const std::uint8_t*>(file.made.data()),
                file.made.size() * sizeof(std::int32_t)};
    add(std::move(file));
  }
}

TokenStream::File TokenStream::open_tokens(MappedFile mapped, TokenDtype stated) {
  const std::string& path = mapped.path();
  const auto bytes = mapped.bytes();
  const std::int64_t stated_bytes = stated == TokenDtype::uint16 ? 2 : 4;
  if (const Header* header = find_header(bytes)) {
    check_header(path, bytes, *header);
    validate(stated == TokenDtype::from_header || stated_bytes == header->token_bytes,
             "token file '{}' holds uint{} by its header, but data.token_dtype says uint{}; leave "
             "data.token_dtype out",
             path, header->token_bytes * 8, stated_bytes * 8);
    return File{std::move(mapped), header->token_bytes, bytes.subspan(header_bytes), 0, {}};
  }
  validate(stated != TokenDtype::from_header,
           "token file '{}' does not begin with llm.c's header; if it holds nothing but ids, say "
           "data.token_dtype: uint16 or uint32 (and if it is text, data.format: text)",
           path);
  validate(
      static_cast<std::int64_t>(bytes.size()) % stated_bytes == 0,
      "token file '{}' has {} bytes, which is no whole number of {}-byte ids; it is cut off or "
      "data.token_dtype is wrong",
      path, bytes.size(), stated_bytes);
  return File{std::move(mapped), stated_bytes, bytes, 0, {}};
}

void TokenStream::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  expects(begin >= 0 && count <= size_ && begin <= size_ - count,
          "tokens [{}, {} + {}) of a stream of {}", begin, begin, count, size_);
  if (out.empty()) return;
  auto file = std::ranges::upper_bound(files_, begin, {}, &File::begin) - 1;
  while (!out.empty()) {
    const std::int64_t first = begin - file->begin;
    const auto part = static_cast<std::size_t>(
        std::min(file->count() - first, static_cast<std::int64_t>(out.size())));
    read_file(*file, first, out.first(part));
    out = out.subspan(part);
    begin += static_cast<std::int64_t>(part);
    ++file;
  }
}

void TokenStream::read_file(const File& file, std::int64_t first,
                            std::span<std::int32_t> out) const {
  const std::uint8_t* ids = file.ids.data() + first * file.token_bytes;
  const std::uint32_t largest = file.token_bytes == 1   ? widen<std::uint8_t>(ids, out)
                                : file.token_bytes == 2 ? widen<std::uint16_t>(ids, out)
                                                        : widen<std::uint32_t>(ids, out);
  // The second test guards ids that do not fit into int32 at all.
  if (largest >= vocab_size_ || largest > std::numeric_limits<std::int32_t>::max())
    fail_outside_vocabulary(file, first, static_cast<std::int64_t>(out.size()));
}

void TokenStream::fail_outside_vocabulary(const File& file, std::int64_t first,
                                          std::int64_t count) const {
  const std::int64_t limit = std::min<std::int64_t>(
      vocab_size_, std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1);
  std::int64_t at = first;
  while (at < first + count && id_at(file.ids.data(), file.token_bytes, at) < limit) ++at;
  fail(ExitCode::bad_input,
       "token {} of '{}' has id {}, but model.vocab_size is {}; the file was made with another "
       "tokenizer, or data.token_dtype is wrong",
       at, file.mapped.path(), id_at(file.ids.data(), file.token_bytes, at), vocab_size_);
}

std::string TokenStream::describe() const {
  const std::string& first = files_.front().mapped.path();
  return files_.size() == 1 ? fmt::format("'{}'", first)
                            : fmt::format("'{}' and {} more", first, files_.size() - 1);
}

}  // namespace llamesh::data
