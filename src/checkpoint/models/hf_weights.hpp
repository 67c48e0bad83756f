#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/models/safetensors.hpp"

namespace llamesh::checkpoint {

/// Tensors in a Hugging Face folder: model.safetensors if it is there, as in transformers, or the
/// files that model.safetensors.index.json names. Files are opened on first use. Any fault in them
/// is a user error (exit 78) that names file and tensor.
///
/// A matrix W in F8_E4M3 may have scales, W_scale_inv: one number, or one for each block with the
/// shape that config.json gives (quantization_config.weight_block_size), or else for each of equal
/// blocks. Reading W multiplies it by them (DeepSeek-V3's and transformers' `fp8`).
///
/// A tensor W (..., C) in MXFP4 (Open Compute Project's MX 1.0) is stored as W_blocks (..., C / 32,
/// 16), two numbers in a byte, and W_scales (..., C / 32). It appears here as W, in BF16, which
/// holds it exactly (transformers' `mxfp4`, which exchanges the last two dims of W, too).
class HfWeights {
 public:
  explicit HfWeights(std::filesystem::path folder);

  /// Returns all tensor names, in order.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return file_of_.contains(name) || is_mxfp4(name); }
  const StoredTensor& tensor(const std::string& name) const;
  /// Returns true for a tensor that is stored in MXFP4.
  bool is_mxfp4(const std::string& name) const { return mxfp4_.contains(name); }
  /// Returns true for scales, also those of activations, which are not read.
  bool is_scale(const std::string& name) const;
  /// Reads elements [begin, begin + values.size()) as fp32.
  void read(const std::string& name, std::int64_t begin, std::span<float> values) const;

  /// Reads bytes [begin, begin + to.size()) of a tensor, as stored.
  void read_bytes(const std::string& name, std::int64_t begin, std::span<std::uint8_t> to) const;

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<std::string>& files() const { return files_; }
  /// Returns the name of an index that is not read, since model.safetensors is there; "": none.
  std::string unread_index() const;

 private:
  /// The scales of a matrix.
  struct Scales {
    std::string name;
    std::int64_t rows, cols;              // of the matrix
    std::int64_t block_rows, block_cols;  // that share a scale
  };
  std::optional<Scales> scales_of(const std::string& name) const;
  void multiply(const Scales& scales, std::int64_t begin, std::span<float> values) const;
  void find_mxfp4();
  void read_mxfp4(const std::string& name, std::int64_t begin, std::span<float> values) const;
  void read_index(const std::filesystem::path& path);
  const SafetensorsFile& file(std::size_t index) const;

  std::filesystem::path folder_;
  std::vector<std::int64_t> block_;             // of scales, if config.json says it
  std::vector<std::string> files_;              // plain names
  std::map<std::string, std::size_t> file_of_;  // tensor name -> file index
  mutable std::vector<std::unique_ptr<SafetensorsFile>> open_;
  /// By name; an entry is empty until its files are opened.
  mutable std::map<std::string, std::optional<StoredTensor>> mxfp4_;
};

}  // namespace llamesh::checkpoint
