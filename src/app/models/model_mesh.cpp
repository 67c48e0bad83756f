#include "app/models/model_mesh.hpp"

#include <spdlog/spdlog.h>

#include "core/error.hpp"
#include "sharding/mesh_tensor_parallel.hpp"

namespace llamesh::app {

ModelMesh::ModelMesh(const comm::Communicator& world, std::int64_t tensor_size)
    : world_(&world), rank_(world.rank()) {
  const int tensor = static_cast<int>(tensor_size);
  comm::agree(world, [&] {  // every rank finds the same error, one reports it
    validate(world.size() % tensor == 0,
             "--tensor-parallel-size is {}, which does not divide the {} {}; change one of them",
             tensor, world.size(), world.size() == 1 ? "rank" : "ranks");
  });
  dims_ = comm::ParallelDims({{"replicate", world.size() / tensor}, {"tensor", tensor}});
  if (tensor == 1) return;
  const auto topology = comm::discover_topology(world, 0);
  if (rank_ == 0 && !comm::within_node(dims_, dims_.tensor(), topology))
    spdlog::warn(
        "the {} ranks that share the model are on several nodes, so every layer waits for the "
        "network; share it among the ranks of one node",
        tensor);
  mesh_.emplace(world, topology, dims_);
}

const comm::Communicator& ModelMesh::data_group() {
  expects(world_ != nullptr, "no MPI, no groups of ranks");
  return mesh_ ? mesh_->group(dims_.batch_axes()) : *world_;
}

std::unique_ptr<model::TensorParallel> ModelMesh::tensor_parallel(const model::ModelConfig& config,
                                                                  sharding::ResidualLayout residual,
                                                                  std::int64_t rows, DType dtype) {
  if (!mesh_) return std::make_unique<model::OneRank>();
  return sharding::make_tensor_parallel(*mesh_, {residual}, rows, config.hidden_size, dtype);
}

}  // namespace llamesh::app
