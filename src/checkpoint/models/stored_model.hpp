#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "checkpoint/format/manifest.hpp"
#include "checkpoint/store/location.hpp"
#include "core/box.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::checkpoint {

/// A model's weights on disk, as parameters of its table: a checkpoint or a Hugging Face folder.
/// Runs on one process, without MPI.
class StoredModel {
 public:
  virtual ~StoredModel() = default;
  /// Reads a range of a parameter, in the range's own order.
  virtual void read(model::ParameterId parameter, const BoxRange& range,
                    std::span<float> values) const = 0;
};

/// Proof that a checkpoint's base model is unchanged, for which all of its frozen weights are read
/// when the checkpoint is opened. One rank does so for all.
enum class ProveBase : bool { no, yes };

/// Opens a checkpoint whose manifest has been read, and its base model if it refers to one.
std::unique_ptr<StoredModel> open_model(const std::filesystem::path& checkpoint, Manifest manifest,
                                        const model::ParameterTable& table,
                                        ProveBase prove = ProveBase::yes);

/// Opens a checkpoint, a run's newest good one, or a Hugging Face folder, and checks that it has
/// the parameters of `table`, which is whole and borrowed. Throws a user error that names the path
/// and what does not fit.
std::unique_ptr<StoredModel> open_model(const Location& location, const model::ModelConfig& config,
                                        const model::ParameterTable& table,
                                        ProveBase prove = ProveBase::yes);

/// Merges adapters into their weights: returns the model of the config without them, whose weights
/// are W + s B A, summed in fp32, W as Lora::base rounds it. `model` has the parameters of `table`,
/// that of `config`, which has adapters; both are borrowed.
std::unique_ptr<StoredModel> merge_adapters(std::unique_ptr<StoredModel> model,
                                            const model::ModelConfig& config,
                                            const model::ParameterTable& table);

}  // namespace llamesh::checkpoint
