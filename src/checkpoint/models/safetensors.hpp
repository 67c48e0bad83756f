#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.hpp"
#include "data/mapped_file.hpp"

/// The safetensors format (github.com/huggingface/safetensors): 8 bytes with the header length, the
/// JSON header, the data. Files are untrusted: any fault is a one-line user error (exit 78) that
/// names the file.
namespace llamesh::checkpoint {

/// Dtypes whose values can be read, and up to f16 written. f8_e4m3 has no infinity.
enum class StoredType : std::uint8_t { f32, bf16, f16, f64, f8_e4m3 };
inline constexpr std::string_view readable_types = "F32, BF16, F16, F64 and F8_E4M3 are read";

constexpr std::int64_t size_of(StoredType type) {
  switch (type) {
    case StoredType::f64:
      return 8;
    case StoredType::f32:
      return 4;
    case StoredType::f8_e4m3:
      return 1;
    default:
      return 2;
  }
}

/// Returns the name used in safetensors headers: F32, BF16, F16, F64, F8_E4M3.
std::string_view name_of(StoredType type);
/// Returns the type with this name, if it is one of them.
std::optional<StoredType> stored_type(std::string_view name);

/// Sets values[i] to the i-th element at `from`, which may be unaligned. Exact, but f64 is rounded
/// to nearest even.
void to_floats(StoredType type, const std::uint8_t* from, std::span<float> values);

/// Converts back: rounds to nearest even and stores at `to`, which may be unaligned. Returns the
/// number of finite values that overflowed to infinity.
std::int64_t from_floats(StoredType type, std::span<const float> values, std::uint8_t* to);

/// Numbers that share a scale in MXFP4.
inline constexpr std::int64_t mxfp4_block = 32;
/// Sets `values` to the numbers in blocks of MXFP4, two in a byte, the lower half first: E2M1 (a
/// sign, 2 bits for the exponent, 1 for the mantissa) times the block's scale, E8M0 (a power of
/// two; 255 is NaN).
void from_mxfp4(const std::uint8_t* blocks, const std::uint8_t* scales, std::span<float> values);

/// A tensor's entry in the header.
struct StoredTensor {
  std::string name;
  std::string dtype;                ///< as spelled in the header, e.g. BF16
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::int64_t begin = 0;           ///< file offset of the first byte
  std::int64_t bytes = 0;

  std::int64_t numel() const;
};

/// Longest header accepted, in bytes.
inline constexpr std::int64_t max_safetensors_header = 100'000'000;

/// Parses a file's header and checks it against the file: the header length is exact, the tensors
/// are contiguous without gaps or overlaps, and each has the size implied by its shape and dtype.
/// `name` is the file's name in messages. Pure; does not read the data.
std::vector<StoredTensor> parse_safetensors(std::span<const std::uint8_t> file,
                                            const std::string& name);

/// Returns the header, with its length in front, for a file with these tensors in this order,
/// padded to a multiple of 8 bytes. Sets each tensor's `begin` and `bytes`.
std::string safetensors_header(std::vector<StoredTensor>& tensors);

/// Parses the weight_map in model.safetensors.index.json: tensor -> plain name of a .safetensors
/// file in the same folder. A name with a path, e.g. with a slash, is a user error, and so is
/// anything that is not an index. `name` is the file's name in messages. Pure.
std::map<std::string, std::string> parse_weight_map(const std::string& text,
                                                    const std::string& name);

/// Sanitizes a name from a file for a message: printable and limited in length.
std::string shown(std::string_view name);

/// A memory-mapped safetensors file; all ranks on a node share its pages. The file must not shrink
/// while mapped. Move-only.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Returns the tensor with this name, or nullptr.
  const StoredTensor* find(const std::string& name) const;
  /// Reads bytes [begin, begin + to.size()) of a tensor, as stored.
  void read_bytes(const StoredTensor& tensor, std::int64_t begin, std::span<std::uint8_t> to) const;
  /// Reads elements [begin, begin + values.size()) of a tensor as fp32. Throws a user error if its
  /// type is not a StoredType.
  void read(const StoredTensor& tensor, std::int64_t begin, std::span<float> values) const;

 private:
  Descriptor file_;
  data::MappedFile mapped_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string_view, std::size_t> by_name_;  // views of tensors_' names
};

}  // namespace llamesh::checkpoint
