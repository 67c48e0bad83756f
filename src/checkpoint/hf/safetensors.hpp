#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/hf/dtype_convert.hpp"
#include "core/file.hpp"
#include "data/mapped_file.hpp"

/// The safetensors format (github.com/huggingface/safetensors): 8 bytes with the length of the
/// header, the header as JSON, the data. Files are untrusted: any fault in one is a user error of
/// one line (exit 78) that names the file.
namespace llamesh::checkpoint {

/// A tensor as the header describes it.
struct StoredTensor {
  std::string name;
  std::string dtype;                ///< as the header spells it, e.g. BF16
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::int64_t begin = 0;           ///< of its first byte in the file
  std::int64_t bytes = 0;

  std::int64_t numel() const;
};

/// The longest header that is read.
inline constexpr std::int64_t max_safetensors_header = 100'000'000;

/// Reads the header of a whole file and checks it against the file: the length is exact, the
/// tensors follow one another without holes or overlaps, and each is as long as its shape and dtype
/// say. `name` is the file's name for messages. Pure; the data are not read.
std::vector<StoredTensor> parse_safetensors(std::span<const std::uint8_t> file,
                                            const std::string& name);

/// The header, with the length before it, of a file of these tensors in this order, padded to a
/// multiple of 8 bytes. Sets `begin` and `bytes` of each.
std::string safetensors_header(std::vector<StoredTensor>& tensors);

/// A name from a file made safe for a message: printable and of limited length.
std::string shown(std::string_view name);

/// A safetensors file, mapped into memory; the pages are shared by all ranks of the machine. The
/// file must not shrink while it is mapped. Move-only.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// nullptr when there is none of that name.
  const StoredTensor* find(const std::string& name) const;
  /// Bytes [begin, begin + to.size()) of a tensor, as stored.
  void read_bytes(const StoredTensor& tensor, std::int64_t begin, std::span<std::uint8_t> to) const;
  /// Elements [begin, begin + values.size()) of a tensor as fp32. Throws a user error when its type
  /// is none of StoredType.
  void read(const StoredTensor& tensor, std::int64_t begin, std::span<float> values) const;

 private:
  Descriptor file_;
  data::MappedFile mapped_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string_view, std::size_t> by_name_;  // views of tensors_' names
};

}  // namespace llamesh::checkpoint
