#pragma once

#include <string>

#include "checkpoint/models/stored_model.hpp"
#include "comm/mesh/parallel_dims.hpp"
#include "data/data_options.hpp"
#include "model/description/model_config.hpp"
#include "model/description/parameters.hpp"
#include "model/inference_weights.hpp"
#include "sharding/tensor_placements.hpp"

namespace llamesh::app {

/// Resolves a path that the user passes as a model: a checkpoint or Hugging Face folder itself, or
/// a run's newest good checkpoint. Runs on one process. Throws a user error if it is neither.
std::string model_path(const std::string& name);

/// A model for `generate` and `evaluate`, on this process's device: all weights, or this rank's
/// part of each.
struct LoadedModel {
  model::ModelConfig config;  ///< resolved, without adapters
  model::ParameterTable table;
  /// From its training data: tokenizer, document_mask and eos_token are set.
  data::DataOptions data;
  std::string hf;                   ///< Hugging Face folder that it came from; empty: none
  sharding::TensorShard shard;      ///< this rank's parts
  model::InferenceWeights weights;  ///< this rank's parts

  /// Loads the weights in `dtype`, split along the tensor axis of `dims`; `path` comes from
  /// model_path(). Adapters, a checkpoint's own or those of the PEFT folder `adapter`, are merged
  /// into the weights. Temporarily also needs this rank's part of the largest tensor in fp32.
  /// Throws a user error that names whatever is missing, does not fit or cannot be divided.
  LoadedModel(const std::string& path, DType dtype, const comm::ParallelDims& dims = {},
              int rank = 0, const std::string& adapter = "");
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

 private:
  struct Shape {
    model::ModelConfig config;  ///< with adapters, if there are any
    data::DataOptions data;
    std::string hf;
  };
  static Shape shape_of(const std::string& path, const std::string& adapter);
  LoadedModel(const std::string& path, DType dtype, Shape shape, const comm::ParallelDims& dims,
              int rank, const std::string& adapter);
  void load(const checkpoint::StoredModel& stored);
};

/// Returns the requested tokenizer, or else the model's own, for tokenizer::open_tokenizer. Throws
/// a user error that points at --tokenizer if there is none.
std::string tokenizer_for(const LoadedModel& model, const std::string& asked);

/// Returns what to do if the model at `path` computes something that is not finite: "look for ...".
std::string advice_on_nonfinite_weights(const std::string& path);

/// Parses "fp32" or "bf16"; anything else is a user error.
DType dtype_of_argument(const std::string& name);

}  // namespace llamesh::app
