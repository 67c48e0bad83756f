#pragma once

#include <cstdint>
#include <string_view>

#include "comm/mesh/device_mesh.hpp"
#include "comm/mesh/mesh_options.hpp"
#include "core/enum_names.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::sharding {

/// Sharding strategy: what is sharded, and over which ranks (the table in docs/strategies.md).
enum class Strategy : std::uint8_t {
  full_shard,          ///< ZeRO-3 over all ranks
  shard_grad_op,       ///< ZeRO-2 over all ranks: parameters stay gathered until the backward pass
  no_shard,            ///< DDP: every rank holds everything, gradients are all-reduced
  hybrid_shard,        ///< ZeRO-3 within a node, replicas across nodes
  hybrid_shard_zero2,  ///< ZeRO-2 within a node, replicas across nodes
};

constexpr std::string_view name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::full_shard:
      return "full_shard";
    case Strategy::shard_grad_op:
      return "shard_grad_op";
    case Strategy::no_shard:
      return "no_shard";
    case Strategy::hybrid_shard:
      return "hybrid_shard";
    case Strategy::hybrid_shard_zero2:
      return "hybrid_shard_zero2";
  }
  return "?";
}
inline EnumNames<Strategy> enum_names(Strategy) {
  using enum Strategy;
  EnumNames<Strategy> result;
  for (const auto s : {full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2})
    result.words.emplace_back(name_of(s), s);
  return result;
}

/// `sharding.reshard_after_forward`, FSDP2's key. Any other value is a number of ranks N.
enum class ReshardAfterForward : int { by_strategy = -1, yes = 0, no = 1 };

/// Fate of a unit's gathered parameters between its forward and backward pass.
enum class Reshard : std::uint8_t {
  after_backward,  ///< stay gathered
  after_forward,   ///< released, and gathered again from the master shards
  to_group,        ///< released, and gathered again from secondary shards in groups of N ranks
};
Reshard reshard_of(Strategy strategy);
/// Returns the rule for the input's key on a shard axis with `shard` ranks. As in FSDP2, 1 rank
/// means `no` and all ranks mean `yes`. Throws a user error if N does not divide `shard`, or if
/// no_shard has a rule.
Reshard reshard_of(Strategy strategy, ReshardAfterForward wanted, int shard);

/// Whether the shard axis is split into the ranks on a node and the nodes, so that collectives may
/// run along either.
enum class SplitByNode : bool { no, yes };

/// Makes a run's mesh [replicate, pipeline, shard, expert, context, tensor], without those whose
/// size is 1 except replicate and shard. Fills in `auto` sizes from the world and its nodes. Splits
/// the shard axis if units are resharded to groups, or else if `by_node` wants it, and the tensor
/// axis if its ranks share blocks of `table` (tensor_axis_for()). Throws a user error with the
/// numbers if sizes do not multiply to the world size or contradict the strategy, if the experts in
/// `table` do not divide among the expert axis, or if the tensor axis, the expert axis or a
/// hybrid's shards would cross nodes. Pure.
comm::ParallelDims make_mesh(Strategy strategy, ReshardAfterForward reshard, SplitByNode by_node,
                             const comm::MeshOptions& options, const comm::Topology& topology,
                             const model::ParameterTable& table);

}  // namespace llamesh::sharding
