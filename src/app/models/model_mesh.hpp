#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/mesh/device_mesh.hpp"
#include "model/description/model_config.hpp"
#include "model/layers/tensor_parallel.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::app {

/// Ranks for `generate` and `evaluate`: groups of neighbors that hold one model copy together,
/// each rank its part of every matrix.
class ModelMesh {
 public:
  /// Uses one process with the whole model; needs no MPI.
  ModelMesh() = default;
  /// Creates groups with `tensor_size` ranks. Collective, after the device is chosen; borrows
  /// `world`. Throws a user error if the ranks cannot be divided into such groups. Rank 0 warns if
  /// a group spans several nodes.
  ModelMesh(const comm::Communicator& world, std::int64_t tensor_size);

  const comm::ParallelDims& dims() const { return dims_; }
  int rank() const { return rank_; }  ///< world rank
  int tensor_size() const { return dims_.group_size(dims_.tensor()); }
  int groups() const { return dims_.group_size(dims_.batch_axes()); }
  int group() const {
    return dims_.rank_in_group(dims_.batch_axes(), rank_);
  }  ///< this rank's group
  /// Returns the communicator with one rank from each group. The first call is collective.
  const comm::Communicator& data_group();
  /// Returns this group's tensor parallelism, for passes with up to `rows` tokens. Collective.
  std::unique_ptr<model::TensorParallel> tensor_parallel(const model::ModelConfig& config,
                                                         sharding::ResidualLayout residual,
                                                         std::int64_t rows, DType dtype);

 private:
  const comm::Communicator* world_ = nullptr;  ///< null: a single process without MPI
  int rank_ = 0;
  comm::ParallelDims dims_;
  std::optional<comm::DeviceMesh> mesh_;  ///< set if a group has several ranks
};

}  // namespace llamesh::app
