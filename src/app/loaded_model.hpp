#pragma once

#include <string>

#include "comm/parallel_dims.hpp"
#include "data/data_options.hpp"
#include "model/frozen_weights.hpp"
#include "model/llama_config.hpp"
#include "model/parameters.hpp"

namespace llamesh::app {

/// The checkpoint or Hugging Face folder of a path that a user passes as a model; for a run its
/// newest good checkpoint. By one process. Throws a user error when it is neither.
std::string model_path(const std::string& name);

/// A model as `generate` and `evaluate` use it: on this process's device all of its weights, or
/// this rank's part of each.
struct LoadedModel {
  model::LlamaConfig config;  ///< resolved
  model::ParameterTable table;
  model::ParameterTable table_of_part;  ///< with the shapes of this rank's parts
  model::FrozenWeights weights;         ///< of these
  /// Of its training data: tokenizer, document_mask and eos_token are set.
  data::DataOptions data;

  /// `path` is what model_path() gives. Takes the weights in `dtype`, cut along the tensor axis of
  /// `dims`, and for a while the part of the largest tensor in fp32 in addition. Throws a user
  /// error that names what is missing, does not fit or cannot be divided.
  LoadedModel(const std::string& path, DType dtype, const comm::ParallelDims& dims = {},
              int rank = 0);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

 private:
  struct Shape {
    model::LlamaConfig config;
    data::DataOptions data;
  };
  static Shape shape_of(const std::string& path);
  LoadedModel(const std::string& path, DType dtype, Shape shape, const comm::ParallelDims& dims,
              int rank);
  void load(const std::string& path, const comm::ParallelDims& dims, int rank);
};

/// The tokenizer that was asked for, or else the model's own, for tokenizer::open_tokenizer. Throws
/// a user error that points at --tokenizer where that is not there.
std::string tokenizer_for(const LoadedModel& model, const std::string& asked);

/// "fp32" or "bf16"; anything else is a user error.
DType dtype_of_argument(const std::string& name);

}  // namespace llamesh::app
