#include "data/token_ids.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "core/text.hpp"
#include "data/mapped_file.hpp"
#include "data/numpy_array.hpp"

namespace llamesh::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::size_t header_bytes = 256 * sizeof(std::int32_t);

/// llm.c's two headers.
struct Header {
  std::int32_t magic;
  std::int32_t version;
  std::int64_t id_bytes;
};
constexpr Header known_headers[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr std::size_t mask_word = 3;
constexpr std::int32_t mask_mark = 0x6b73616d;  // "mask"

/// Calls `body` with a value of the integer type for ids of this size.
template <class Body>
auto with_type(std::int64_t id_bytes, Body body) {
  return id_bytes == 1   ? body(std::uint8_t{})
         : id_bytes == 2 ? body(std::uint16_t{})
                         : body(std::uint32_t{});
}

const Header* find_header(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < sizeof(std::int32_t)) return nullptr;
  const auto magic = load<std::int32_t>(bytes.data());
  const auto* found = std::ranges::find(known_headers, magic, &Header::magic);
  return found == std::end(known_headers) ? nullptr : found;
}

/// Checks the header, and the file length against it.
void check_header(const std::string& path, std::span<const std::uint8_t> bytes,
                  const Header& header) {
  validate(bytes.size() >= header_bytes,
           "token file '{}' is truncated: {} bytes, but its header alone has {}", path,
           bytes.size(), header_bytes);
  const auto version = load<std::int32_t>(bytes.data() + 4);
  validate(
      version == header.version,
      "token file '{}' has version {} in its header; with magic {} only version {} is supported",
      path, version, header.magic, header.version);
  const std::int64_t count = load<std::int32_t>(bytes.data() + 8);
  validate(count > 0, "token file '{}' has a header that promises {} tokens", path, count);
  const std::int64_t expected = static_cast<std::int64_t>(header_bytes) + count * header.id_bytes;
  validate(static_cast<std::int64_t>(bytes.size()) == expected,
           "token file '{}' is {}: its header promises {} tokens, which makes {} bytes, but it has "
           "{}; write it again",
           path, static_cast<std::int64_t>(bytes.size()) < expected ? "truncated" : "too long",
           count, expected, bytes.size());
}

/// Returns the ids in a .npy file. int32 is read like uint32: a negative id is outside any
/// vocabulary.
IdArray ids_of_numpy_array(std::span<const std::uint8_t> file, const std::string& path,
                           TokenDtype stated) {
  const auto array = numpy_array(file, path);
  const bool narrow = array.dtype == "<u2";
  validate(narrow || array.dtype == "<u4" || array.dtype == "<i4",
           "token file '{}' has dtype {}; save its ids as uint16 or uint32 (numpy's astype)", path,
           printable(array.dtype));
  const std::int64_t id_bytes = narrow ? 2 : 4;
  validate(stated == TokenDtype::from_header || narrow == (stated == TokenDtype::uint16),
           "token file '{}' has dtype {}, but uint{} was given; leave that out (data.token_dtype, "
           "--token-dtype)",
           path, array.dtype, stated == TokenDtype::uint16 ? 16 : 32);
  validate(array.size > 0, "token file '{}' is an empty array", path);
  validate(array.size <= std::ssize(array.values) / id_bytes &&
               array.size * id_bytes == std::ssize(array.values),
           "token file '{}' promises {} ids of {} bytes, but {} bytes follow its header; write it "
           "again",
           path, array.size, id_bytes, array.values.size());
  return {array.values, id_bytes};
}

}  // namespace

std::uint32_t IdArray::operator[](std::int64_t i) const {
  const std::uint8_t* at = bytes_.data() + i * id_bytes_;
  return with_type(id_bytes_, [&](auto type) -> std::uint32_t { return load<decltype(type)>(at); });
}

std::uint32_t IdArray::widen(std::int64_t first, std::span<std::int32_t> out) const {
  const std::uint8_t* ids = bytes_.data() + first * id_bytes_;
  return with_type(id_bytes_, [&](auto type) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint32_t id = load<decltype(type)>(ids + i * sizeof(type));
      largest = std::max(largest, id);
      out[i] = static_cast<std::int32_t>(id);
    }
    return largest;
  });
}

std::int64_t IdArray::find(std::uint32_t id, std::int64_t from, std::int64_t to) const {
  return with_type(id_bytes_, [&](auto type) {
    std::int64_t i = from;
    while (i < to && load<decltype(type)>(bytes_.data() + i * id_bytes_) != id) ++i;
    return i;
  });
}

TokenBuffer::TokenBuffer(std::int64_t vocab_size)
    : id_bytes_(vocab_size <= std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1 ? 2 : 4) {
}

void TokenBuffer::append(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    // The low bytes come first.
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&id);
    bytes_.insert(bytes_.end(), bytes, bytes + id_bytes_);
  }
}

bool has_token_header(std::span<const std::uint8_t> file) {
  return find_header(file) != nullptr;
}

bool is_token_file(std::span<const std::uint8_t> file) {
  return has_token_header(file) || has_numpy_header(file);
}

bool promises_loss_mask(std::span<const std::uint8_t> file) {
  return file.size() >= header_bytes && find_header(file) != nullptr &&
         load<std::int32_t>(file.data(), mask_word) == mask_mark;
}

IdArray ids_of_token_file(std::span<const std::uint8_t> bytes, const std::string& path,
                          TokenDtype stated) {
  const std::int64_t stated_bytes = stated == TokenDtype::uint32 ? 4 : 2;
  if (const Header* header = find_header(bytes)) {
    check_header(path, bytes, *header);
    validate(stated == TokenDtype::from_header || stated_bytes == header->id_bytes,
             "token file '{}' holds uint{} by its header, but uint{} was given; leave that out "
             "(data.token_dtype, --token-dtype)",
             path, header->id_bytes * 8, stated_bytes * 8);
    return {bytes.subspan(header_bytes), header->id_bytes};
  }
  if (has_numpy_header(bytes)) return ids_of_numpy_array(bytes, path, stated);
  validate(stated != TokenDtype::from_header,
           "token file '{}' does not begin with llm.c's header; if it holds only ids, set "
           "data.token_dtype to uint16 or uint32 (and if it is text, data.format to text)",
           path);
  validate(static_cast<std::int64_t>(bytes.size()) % stated_bytes == 0,
           "token file '{}' has {} bytes, which is not a multiple of {}-byte ids; it is truncated, "
           "or its dtype (data.token_dtype, --token-dtype) is wrong",
           path, bytes.size(), stated_bytes);
  return {bytes, stated_bytes};
}

std::array<std::int32_t, 256> token_header(std::int64_t id_bytes, std::int64_t count,
                                           MaskBeside mask) {
  const auto* const header = std::ranges::find(known_headers, id_bytes, &Header::id_bytes);
  expects(header != std::end(known_headers), "no token file has ids of {} bytes", id_bytes);
  return {header->magic, header->version, static_cast<std::int32_t>(count),
          mask == MaskBeside::yes ? mask_mark : 0};
}

}  // namespace llamesh::data
