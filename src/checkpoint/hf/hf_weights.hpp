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

/// The tensors of a Hugging Face folder: model.safetensors, or the files that
/// model.safetensors.index.json names. Files are opened when they are first needed. Any fault in
/// them is a user error (exit 78) that names file and tensor.
class HfWeights {
 public:
  explicit HfWeights(std::filesystem::path folder);

  /// Of all tensors, in order.
  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return file_of_.contains(name); }
  const StoredTensor& tensor(const std::string& name) const;
  /// Bytes [begin, begin + to.size()) of a tensor, as stored.
  void read_bytes(const std::string& name, std::int64_t begin, std::span<std::uint8_t> to) const;
  /// Elements [begin, begin + values.size()) as fp32.
  void read(const std::string& name, std::int64_t begin, std::span<float> values) const;

  /// Opens every file, and throws unless they hold exactly the parameters of the table, by name and
  /// shape. Buffers of rotary embeddings are skipped, as is a tied model's head where it is stored.
  void check_fits(const model::ParameterTable& table) const;

  const std::vector<std::string>& files() const { return files_; }

 private:
  void read_index(const std::filesystem::path& path);
  const SafetensorsFile& file(std::size_t index) const;

  std::filesystem::path folder_;
  std::vector<std::string> files_;              // plain names
  std::map<std::string, std::size_t> file_of_;  // by tensor
  mutable std::vector<std::unique_ptr<SafetensorsFile>> open_;
};

/// Fills a transfer of the model, which is the first group of the state, from a folder that fits
/// it. `spare` is room for a segment, between calls. A tied model's head, where it is stored, must
/// equal the embedding. Local.
void read_hf_weights(const HfWeights& weights, const State& state, const Transfer& transfer,
                     std::vector<float>& spare);

/// Fills the group "/model" of every rank's state, which comes first in it, from a folder.
/// Collective; on an error every rank throws. Beside the state it takes some MiB of host memory.
void load_hf_weights(const std::filesystem::path& folder, const State& state,
                     const comm::Communicator& world, ReadBy by);

}  // namespace llamesh::checkpoint
