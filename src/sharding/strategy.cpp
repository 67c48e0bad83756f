#include "sharding/strategy.hpp"

#include "core/error.hpp"

namespace llamesh::sharding {
namespace {

bool is_hybrid(Strategy s) {
  return s == Strategy::hybrid_shard || s == Strategy::hybrid_shard_zero2;
}

/// The shard size that a strategy has when the inputs leave it open.
int natural_shard_size(Strategy strategy, const comm::MeshOptions& options,
                       const comm::Topology& topology) {
  const int world = static_cast<int>(topology.node_of.size());
  if (strategy == Strategy::no_shard) return 1;
  if (!is_hybrid(strategy)) return world;
  if (options.replicate != 0 && world % options.replicate == 0) return world / options.replicate;
  const int per_node = topology.uniform_ranks_per_node();
  validate(per_node != 0,
           "{} needs the same number of ranks on every node, but {} ranks stand on {} nodes "
           "unevenly ({} on the first); change --ntasks-per-node or set mesh.axes.shard",
           name_of(strategy), world, topology.nodes, topology.ranks_on(0));
  return per_node;
}

}  // namespace

Reshard reshard_of(Strategy strategy) {
  return strategy == Strategy::full_shard || strategy == Strategy::hybrid_shard
             ? Reshard::after_forward
             : Reshard::after_backward;
}

comm::ParallelDims parallel_dims(Strategy strategy, const comm::MeshOptions& options,
                                 const comm::Topology& topology) {
  const int world = static_cast<int>(topology.node_of.size());
  const int shard =
      options.shard != 0 ? options.shard : natural_shard_size(strategy, options, topology);
  const int replicate = options.replicate != 0 ? options.replicate : std::max(1, world / shard);
  const auto needed = std::int64_t{replicate} * shard;
  validate(needed == world,
           "mesh replicate={} x shard={} needs {} ranks, but there are {}; change mesh.axes or the "
           "number of ranks",
           replicate, shard, needed, world);
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
  comm::ParallelDims dims({{"replicate", replicate}, {"shard", shard}});
  if (is_hybrid(strategy))
    validate(comm::within_node(dims, dims.named({"shard"}), topology),
             "{}: a shard axis of {} ranks would cross nodes ({} ranks on {} nodes, {} on the "
             "first); use a size that divides the ranks of a node, or full_shard",
             name_of(strategy), shard, world, topology.nodes, topology.ranks_on(0));
  return dims;
}

}  // namespace llamesh::sharding
