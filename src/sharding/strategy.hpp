#pragma once

#include <cstdint>
#include <string_view>

#include "comm/device_mesh.hpp"
#include "comm/mesh_options.hpp"

namespace llamesh::sharding {

/// What is sharded, and over which ranks (the table in docs/strategies.md).
enum class Strategy : std::uint8_t {
  full_shard,          ///< ZeRO-3 over all ranks
  shard_grad_op,       ///< ZeRO-2 over all ranks: parameters stay gathered until the backward pass
  no_shard,            ///< DDP: every rank holds all, gradients are all-reduced
  hybrid_shard,        ///< ZeRO-3 within a node, replicas across nodes
  hybrid_shard_zero2,  ///< ZeRO-2 within a node, replicas across nodes
};

std::string_view name_of(Strategy strategy);

/// Whether a unit's gathered parameters are given back after its forward pass and gathered again
/// for the backward pass.
enum class Reshard : bool { after_backward, after_forward };
Reshard reshard_of(Strategy strategy);

/// The mesh [replicate, shard, tensor] of a strategy, without tensor where its size is 1: `auto`
/// sizes filled in from the world and its nodes. Throws a user error with the numbers when sizes do
/// not multiply to the world, contradict the strategy, or when the tensor axis or a hybrid's shard
/// axis would cross nodes. Pure.
comm::ParallelDims parallel_dims(Strategy strategy, const comm::MeshOptions& options,
                                 const comm::Topology& topology);

}  // namespace llamesh::sharding
