#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/models/safetensors.hpp"

namespace llamesh::checkpoint {

/// Tensors in a Hugging Face folder: model.safetensors if it is there, as in transformers, or the
/// files that model.safetensors.index.json names. Files are opened on first use. Any fault in them
/// is a user error (exit 78) that names file and tensor.
class HfWeights {
 public:
  explicit HfWeights(std::filesystem::path folder);

  /// Returns all tensor names, in order.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return file_of_.contains(name); }
  const StoredTensor& tensor(const std::string& name) const;
  /// Reads elements [begin, begin + values.size()) as fp32.
  void read(const std::string& name, std::int64_t begin, std::span<float> values) const;

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<std::string>& files() const { return files_; }
  /// Returns the name of an index that is not read, since model.safetensors is there; "": none.
  std::string unread_index() const;

 private:
  void read_index(const std::filesystem::path& path);
  const SafetensorsFile& file(std::size_t index) const;

  std::filesystem::path folder_;
  std::vector<std::string> files_;              // plain names
  std::map<std::string, std::size_t> file_of_;  // tensor name -> file index
  mutable std::vector<std::unique_ptr<SafetensorsFile>> open_;
};

}  // namespace llamesh::checkpoint
