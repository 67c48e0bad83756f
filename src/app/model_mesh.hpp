#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/device_mesh.hpp"
#include "model/llama_config.hpp"
#include "model/tensor_parallel.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::app {

/// The ranks of `generate` and `evaluate`: groups of neighbours that hold a model together, each
/// rank its part of every matrix. All groups hold the same.
class ModelMesh {
 public:
  /// One process that has all; it needs no MPI.
  ModelMesh() = default;
  /// Groups of `tensor_size` ranks. Collective, once the device is chosen; `world` is borrowed.
  /// Throws a user error where the ranks cannot be divided into such groups. Rank 0 warns where a
  /// group would be on several nodes.
  ModelMesh(const comm::Communicator& world, std::int64_t tensor_size);

  const comm::ParallelDims& dims() const { return dims_; }
  int rank() const { return rank_; }  ///< in the world
  int tensor_size() const { return dims_.group_size(dims_.tensor()); }
  int groups() const { return dims_.group_size(dims_.batch_axes()); }
  int group() const { return dims_.rank_in_group(dims_.batch_axes(), rank_); }  ///< this rank's
  /// One rank of each group. Collective at the first call.
  const comm::Communicator& data_group();
  /// What the model asks of its group, for passes of up to `rows` tokens. Collective.
  std::unique_ptr<model::TensorParallel> tensor_parallel(const model::LlamaConfig& config,
                                                         sharding::ResidualLayout residual,
                                                         std::int64_t rows, DType dtype);

 private:
  const comm::Communicator* world_ = nullptr;  ///< null: one process without MPI
  int rank_ = 0;
  comm::ParallelDims dims_;
  std::optional<comm::DeviceMesh> mesh_;  ///< where a group has several ranks
};

}  // namespace llamesh::app
