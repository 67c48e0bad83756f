#include "sharding/strategy.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace llamesh::sharding {
namespace {

bool is_hybrid(Strategy s) {
  return s == Strategy::hybrid_shard || s == Strategy::hybrid_shard_zero2;
}

/// Returns the strategy's shard size if the input leaves it open. `groups` is the number of rank
/// groups that share data, over which it shards.
int natural_shard_size(Strategy strategy, const comm::MeshOptions& options,
                       const comm::Topology& topology, int groups) {
  if (strategy == Strategy::no_shard) return 1;
  if (!is_hybrid(strategy)) return groups;
  if (options.replicate != 0 && groups % options.replicate == 0) return groups / options.replicate;
  const int per_node = topology.uniform_ranks_per_node();
  const auto world = topology.node_of.size();
  validate(per_node != 0,
           "{} needs the same number of ranks on every node, but {} ranks are on {} nodes "
           "unevenly ({} on the first); change --ntasks-per-node or set mesh.axes.shard",
           name_of(strategy), world, topology.nodes, topology.ranks_on(0));
  return std::max(1, per_node / options.tensor);
}

/// Checks that the sizes fit the world and the strategy.
void check_sizes(Strategy strategy, std::int64_t replicate, std::int64_t shard, std::int64_t tensor,
                 std::int64_t world) {
  const auto needed = replicate * shard * tensor;
  validate(needed == world,
           "mesh replicate={} x shard={}{} needs {} ranks, but there are {}; change mesh.axes or "
           "the number of ranks",
           replicate, shard, tensor == 1 ? "" : fmt::format(" x tensor={}", tensor), needed, world);
  if (strategy == Strategy::no_shard)
    validate(shard == 1,
             "no_shard keeps everything on every rank, but mesh.axes.shard is {}; use "
             "hybrid_shard to shard",
             shard);
  else if (!is_hybrid(strategy))
    validate(replicate == 1,
             "{} shards over all ranks, but mesh.axes.replicate is {}; use "
             "hybrid_shard to replicate",
             name_of(strategy), replicate);
}

/// Checks that axes that need intra-node links stay within a node.
void check_nodes(Strategy strategy, const comm::MeshOptions& options,
                 const comm::ParallelDims& dims, const comm::Topology& topology) {
  const auto within = [&](comm::AxisSet axes) { return comm::within_node(dims, axes, topology); };
  const auto world = topology.node_of.size();
  validate(options.allow_tensor_across_nodes || within(dims.tensor()),
           "a tensor axis of {} ranks would cross nodes ({} ranks on {} nodes, {} on the first); "
           "use a size that divides the ranks of a node, or set mesh.allow_tensor_across_nodes",
           options.tensor, world, topology.nodes, topology.ranks_on(0));
  validate(!is_hybrid(strategy) || within(dims.named({"shard"})),
           "{}: a shard axis of {} ranks would cross nodes ({} ranks on {} nodes, {} on the "
           "first); use a size that divides the ranks of a node, or full_shard",
           name_of(strategy), dims.group_size(dims.named({"shard"})), world, topology.nodes,
           topology.ranks_on(0));
}

}  // namespace

Reshard reshard_of(Strategy strategy) {
  return strategy == Strategy::full_shard || strategy == Strategy::hybrid_shard
             ? Reshard::after_forward
             : Reshard::after_backward;
}

Reshard reshard_of(Strategy strategy, ReshardAfterForward wanted, int shard) {
  if (wanted == ReshardAfterForward::by_strategy) return reshard_of(strategy);
  validate(strategy != Strategy::no_shard,
           "sharding.reshard_after_forward is set, but no_shard has every parameter on every rank; "
           "leave it out or use another strategy");
  if (wanted == ReshardAfterForward::yes) return Reshard::after_forward;
  if (wanted == ReshardAfterForward::no) return Reshard::after_backward;
  const int ranks = static_cast<int>(wanted);
  std::vector<std::string> fitting{"true", "false"};
  for (int n = 2; n < shard; ++n)
    if (shard % n == 0) fitting.push_back(fmt::format("{}", n));
  validate(shard % ranks == 0,
           "sharding.reshard_after_forward is {}, which does not divide the {} ranks of the shard "
           "axis; use one of {}",
           ranks, shard, fmt::join(fitting, ", "));
  return ranks == shard ? Reshard::after_forward : Reshard::to_group;
}

comm::ParallelDims parallel_dims(Strategy strategy, const comm::MeshOptions& options,
                                 const comm::Topology& topology) {
  const int world = static_cast<int>(topology.node_of.size());
  validate(world % options.tensor == 0,
           "mesh.axes.tensor is {}, which does not divide the {} ranks; change one of them",
           options.tensor, world);
  const int groups = world / options.tensor;
  const int shard =
      options.shard != 0 ? options.shard : natural_shard_size(strategy, options, topology, groups);
  const int replicate = options.replicate != 0 ? options.replicate : std::max(1, groups / shard);
  check_sizes(strategy, replicate, shard, options.tensor, world);
  std::vector<comm::MeshAxis> axes{{"replicate", replicate}, {"shard", shard}};
  if (options.tensor > 1) axes.push_back({"tensor", options.tensor});
  comm::ParallelDims dims(std::move(axes));
  check_nodes(strategy, options, dims, topology);
  return dims;
}

}  // namespace llamesh::sharding
