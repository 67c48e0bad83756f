#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace llamesh::data {

/// A view of a one-dimensional NumPy array in a mapped .npy file (format versions 1 to 3, see
/// numpy/lib/format.py).
struct NumpyArray {
  std::string dtype;                     ///< as `descr` has it: "<u2", "|b1", ...
  std::int64_t size = 0;                 ///< elements
  std::span<const std::uint8_t> values;  ///< everything after the header
};

/// Returns true if the file begins like a .npy file.
bool has_numpy_header(std::span<const std::uint8_t> file);

/// Parses the header. Throws a user error that names `path` if it is malformed, or if the array has
/// another number of dimensions.
NumpyArray numpy_array(std::span<const std::uint8_t> file, const std::string& path);

/// Length of the headers that numpy_header() returns.
inline constexpr std::int64_t numpy_header_bytes = 128;
/// Returns the header for an array with `size` elements of a NumpyArray::dtype.
std::string numpy_header(const std::string& dtype, std::int64_t size);

}  // namespace llamesh::data
