#pragma once

#include <filesystem>
#include <vector>

#include "checkpoint/format/checkpoint_options.hpp"
#include "checkpoint/format/state.hpp"
#include "checkpoint/models/folder_names.hpp"
#include "checkpoint/models/hf_weights.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "comm/mpi/communicator.hpp"
#include "model/description/family.hpp"
#include "model/description/state_dict.hpp"

namespace llamesh::checkpoint {

/// A Hugging Face folder's tensors as the parameters of a model, by its family's state dict. A
/// fault in the folder is a user error (exit 78) that names file and tensor.
class HfModel final : public StoredModel {
 public:
  /// `table` is whole and borrowed.
  HfModel(std::filesystem::path folder, const model::ModelConfig& config,
          const model::ParameterTable& table);

  /// Opens every file, and throws unless they hold exactly the state dict's tensors, by name and
  /// shape. Ignores buffers of rotary embeddings and masks, a tied model's head if it is stored,
  /// and, logging them, Family::has_prediction_layers and the other parts in a model that takes
  /// images, too.
  void check_fits() const;
  /// Reads the head of a tied model, if it is stored, and throws unless it equals the embedding.
  void check_stored_head() const;
  /// Reads a range of a parameter. A tied model's head, if stored, must equal the embedding.
  void read(model::ParameterId parameter, const BoxRange& range,
            std::span<float> values) const override;
  /// Returns the type that stores a parameter, as read() returns it, exactly.
  StoredType type(model::ParameterId parameter) const;

 private:
  /// A place where a parameter is stored: a tensor of the dict and one of its parts.
  struct Place {
    std::size_t tensor, part;
  };
  void check_tied_head(model::ParameterId parameter, const BoxRange& range,
                       std::span<const float> values) const;

  bool is_left_out(const std::string& name) const;
  void check_constant(const model::StoredConstant& constant) const;

  HfWeights weights_;
  const model::Family& family_;
  FolderNames names_;
  const model::ParameterTable& table_;
  model::StateDict dict_;
  std::vector<model::StoredConstant> constants_;
  std::vector<std::vector<Place>> places_;  ///< by parameter
  std::string stored_head_;                 ///< a tied head's tensor, if it is stored
};

/// Opens a folder on every rank. Rank 0 goes first and checks that it fits. Collective.
std::unique_ptr<HfModel> open_hf_model(const std::filesystem::path& folder,
                                       const model::ModelConfig& config,
                                       const model::ParameterTable& table,
                                       const comm::Communicator& world);

/// Fills the groups "/model" of every rank's state from a folder, without adapters. Needs a few MiB
/// of extra host memory. Collective; on an error every rank throws. Returns the hash of the frozen
/// weights, as in BaseModel.
std::uint64_t load_hf_weights(const std::filesystem::path& folder, const model::ModelConfig& config,
                              const State& state, const comm::Communicator& world, ReadBy by);

}  // namespace llamesh::checkpoint
