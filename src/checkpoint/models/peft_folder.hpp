#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/format/state.hpp"
#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/safetensors.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "comm/mpi/communicator.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"
#include "model/description/state_dict.hpp"

/// Folders with adapters as PEFT writes and reads them: adapter_config.json and
/// adapter_model.safetensors. Folders are untrusted: any fault is a one-line user error (exit 78)
/// that names the file.
namespace llamesh::checkpoint {

/// The adapters in a folder, as parameters of a table.
class PeftFolder {
 public:
  /// `table` is that of `config` and has adapters. Throws a user error unless the folder has
  /// exactly these, by name and shape: an adapter for another base model is refused.
  PeftFolder(const std::filesystem::path& folder, const model::ModelConfig& config,
             const model::ParameterTable& table);

  /// Reads a range of an adapter.
  void read(model::ParameterId parameter, const BoxRange& range, std::span<float> values) const;

 private:
  SafetensorsFile file_;
  model::StateDict dict_;
  std::map<model::ParameterId, std::size_t> tensors_;  ///< its tensor in the dict
};

/// Returns the model that `base`, a model without adapters, and a folder's adapters make together.
/// `table` is that of `config` and has adapters.
std::unique_ptr<StoredModel> with_adapters(std::unique_ptr<StoredModel> base,
                                           const std::filesystem::path& folder,
                                           const model::ModelConfig& config,
                                           const model::ParameterTable& table);

/// Fills the adapters of every rank's state, those of `config`, from a folder. Collective; on an
/// error every rank throws.
void load_adapters(const std::filesystem::path& folder, const model::ModelConfig& config,
                   const State& state, const comm::Communicator& world);

/// Exports a checkpoint's adapters as a new folder that PEFT can load. adapter_config.json
/// names the base model to which the checkpoint refers, or `base` if its weights are those in the
/// checkpoint. Collective; on an error every rank throws.
void export_adapters(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
                     StoredType type, const std::string& base, const comm::Communicator& world);

}  // namespace llamesh::checkpoint
