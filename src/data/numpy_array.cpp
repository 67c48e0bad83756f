#include "data/numpy_array.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"
#include "data/mapped_file.hpp"

namespace llamesh::data {
namespace {

constexpr std::string_view magic = "\x93NUMPY";

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns what follows `key` and any spaces in the header, a Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key) {
  const auto at = header.find(key);
  if (at == header.npos) return {};
  header.remove_prefix(at + key.size());
  const auto first = header.find_first_not_of(' ');
  return first == header.npos ? std::string_view() : header.substr(first);
}

/// Returns the text between quotes at the beginning.
std::string_view quoted(std::string_view value) {
  if (!value.starts_with('\'')) return {};
  value.remove_prefix(1);
  const auto end = value.find('\'');
  return end == value.npos ? std::string_view() : value.substr(0, end);
}

/// Returns N from "(N,)".
std::optional<std::int64_t> only_dim(std::string_view shape) {
  if (!shape.starts_with('(')) return std::nullopt;
  shape.remove_prefix(1);
  std::int64_t size = 0;
  const char* const end = shape.data() + shape.size();
  const auto [rest, error] = std::from_chars(shape.data(), end, size);
  if (error != std::errc{} || size < 0) return std::nullopt;
  if (!std::string_view(rest, end).starts_with(",)")) return std::nullopt;
  return size;
}

}  // namespace

bool has_numpy_header(std::span<const std::uint8_t> file) {
  return text_of(file).starts_with(magic);
}

NumpyArray numpy_array(std::span<const std::uint8_t> file, const std::string& path) {
  constexpr std::size_t before_length = 8;
  validate(file.size() >= before_length + 4 && has_numpy_header(file),
           "'{}' is truncated: {} bytes are too few for the header of a NumPy array", path,
           file.size());
  const int version = file[6];
  validate(version >= 1 && version <= 3, "'{}' has version {} of NumPy's format; 1 to 3 are known",
           path, version);
  const auto* const length = file.data() + before_length;
  const std::size_t bytes =
      version == 1 ? load<std::uint16_t>(length) : load<std::uint32_t>(length);
  const std::size_t begin = before_length + (version == 1 ? 2 : 4);
  validate(bytes <= file.size() - begin,
           "'{}' is truncated: its header promises {} bytes, but only {} follow", path, bytes,
           file.size() - begin);
  const auto header = text_of(file.subspan(begin, bytes));
  const auto dtype = quoted(value_of(header, "'descr':"));
  validate(!dtype.empty(), "'{}' is a NumPy array without a plain dtype; save one of integers",
           path);
  const auto shape = value_of(header, "'shape':");
  const auto size = only_dim(shape);
  validate(size.has_value(), "'{}' is a NumPy array of shape {}; save one with a single dimension",
           path, printable(shape.substr(0, shape.find(')') + 1)));
  return {std::string(dtype), *size, file.subspan(begin + bytes)};
}

std::string numpy_header(const std::string& dtype, std::int64_t size) {
  const auto dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}", dtype, size);
  constexpr std::size_t length = numpy_header_bytes - 10;
  std::string header(magic);
  header += {1, 0, static_cast<char>(length), 0};
  header += dictionary;
  header.resize(numpy_header_bytes - 1, ' ');
  return header + '\n';
}

}  // namespace llamesh::data
