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

/// `sharding.reshard_after_forward`, FSDP2's key. Every other value is a number of ranks N.
enum class ReshardAfterForward : int { by_strategy = -1, yes = 0, no = 1 };

/// What becomes of a unit's gathered parameters between its forward and its backward pass.
enum class Reshard : std::uint8_t {
  after_backward,  ///< they stay
  after_forward,   ///< they are released, and gathered again from the master shards
  to_group,        ///< the same, but gathered from secondary shards within groups of N ranks
};
Reshard reshard_of(Strategy strategy);
/// The rule of the inputs on a shard axis of `shard` ranks. As in FSDP2, 1 rank is `no` and all of
/// them are `yes`. Throws a user error where N does not divide `shard`, or no_shard has a rule.
Reshard reshard_of(Strategy strategy, ReshardAfterForward wanted, int shard);

/// The mesh [replicate, shard, tensor] of a strategy, without tensor where its size is 1: `auto`
/// sizes filled in from the world and its nodes. Throws a user error with the numbers when sizes do
/// not multiply to the world, contradict the strategy, or when the tensor axis or a hybrid's shard
/// axis would cross nodes. Pure.
comm::ParallelDims parallel_dims(Strategy strategy, const comm::MeshOptions& options,
                                 const comm::Topology& topology);

}  // namespace llamesh::sharding
