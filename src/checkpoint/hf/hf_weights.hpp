#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hf/hf_options.hpp"
#include "checkpoint/hf/safetensors.hpp"
#include "checkpoint/state.hpp"
#include "comm/communicator.hpp"

namespace llamesh::checkpoint {

/// Tensors in a Hugging Face folder: model.safetensors, or the files that
/// model.safetensors.index.json names. Files are opened on first use. Any fault in them is a user
/// error (exit 78) that names file and tensor.
class HfWeights {
 public:
  explicit HfWeights(std::filesystem::path folder);

  /// Returns all tensor names, in order.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return file_of_.contains(name); }
  const StoredTensor& tensor(const std::string& name) const;
  /// Reads bytes [begin, begin + to.size()) of a tensor, as stored.
  void read_bytes(const std::string& name, std::int64_t begin, std::span<std::uint8_t> to) const;
  /// Reads elements [begin, begin + values.size()) as fp32.
  void read(const std::string& name, std::int64_t begin, std::span<float> values) const;

  /// Opens every file, and throws unless they hold exactly the table's parameters, by name and
  /// shape. Ignores rotary embedding buffers, and a tied model's head if it is stored.
  void check_fits(const model::ParameterTable& table) const;

  const std::vector<std::string>& files() const { return files_; }

 private:
  void read_index(const std::filesystem::path& path);
  const SafetensorsFile& file(std::size_t index) const;

  std::filesystem::path folder_;
  std::vector<std::string> files_;              // plain names
  std::map<std::string, std::size_t> file_of_;  // tensor name -> file index
  mutable std::vector<std::unique_ptr<SafetensorsFile>> open_;
};

/// Fills a model transfer (the state's first group) from a folder that fits the model. `spare` is
/// scratch space for one segment, reused between calls. A tied model's head, if stored, must equal
/// the embedding. Local.
void read_hf_weights(const HfWeights& weights, const State& state, const ShardIo& transfer,
                     std::vector<float>& spare);

/// Fills the group "/model", the first in every rank's state, from a folder. Needs a few MiB of
/// extra host memory. Collective; on an error every rank throws.
void load_hf_weights(const std::filesystem::path& folder, const State& state,
                     const comm::Communicator& world, ReadBy by);

}  // namespace llamesh::checkpoint
