#include "sharding/strategy.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sharding/tensor_placements.hpp"

namespace llamesh::sharding {
namespace {

bool is_hybrid(Strategy s) {
  return s == Strategy::hybrid_shard || s == Strategy::hybrid_shard_zero2;
}

/// Returns how many ranks along the shard axis a node has room for: more than the axis has if
/// several pipeline stages or replicas are on a node; 1 if nodes differ.
int ranks_along_shard_on_node(const comm::MeshOptions& options, const comm::Topology& topology) {
  return std::max(
      1, topology.uniform_ranks_per_node() / (options.tensor * options.context * options.expert));
}

/// Returns the strategy's shard size if the input leaves it open. `groups` is the number of
/// positions along replicate and shard.
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
  return std::gcd(ranks_along_shard_on_node(options, topology), groups);
}

/// Checks that the sizes fit the world and the strategy.
void check_sizes(Strategy strategy, const comm::ParallelDims& dims, int world) {
  const auto size = [&](std::string_view axis) { return dims.group_size(dims.named({axis})); };
  const int replicate = size("replicate"), shard = size("shard");
  validate(dims.ranks() == world,
           "mesh {} needs {} ranks, but there are {}; change mesh.axes or the number of ranks",
           comm::to_string(dims), dims.ranks(), world);
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
  const auto nodes = fmt::format("{} ranks on {} nodes, {} on the first", topology.node_of.size(),
                                 topology.nodes, topology.ranks_on(0));
  const auto check_axis = [&](std::string_view axis, bool may_cross) {
    const auto along = dims.named({axis});
    validate(may_cross || within(along),
             "{} {} axis of {} ranks would cross nodes ({}); use a size that divides the ranks of "
             "a node, or set mesh.allow_{}_across_nodes",
             axis == "expert" ? "an" : "a", axis, dims.group_size(along), nodes, axis);
  };
  check_axis("tensor", options.allow_tensor_across_nodes);
  check_axis("expert", options.allow_expert_across_nodes);
  const auto shards = dims.named({"shard", "expert", "context"});
  const bool may_cross = !is_hybrid(strategy) || !within(dims.named({"expert", "context"}));
  validate(may_cross || within(shards),
           "{}: a shard axis of {} ranks would cross nodes ({}); use a size that divides the ranks "
           "of a node, or full_shard",
           name_of(strategy), dims.group_size(shards), nodes);
}

/// Checks that each rank along the expert axis has the same number of experts.
void check_experts(const model::ParameterTable& table, int ranks) {
  if (ranks == 1) return;
  const auto stacked = std::ranges::find_if(
      table.parameters, [](const auto& parameter) { return model::is_stacked(parameter.role); });
  validate(stacked != table.parameters.end(),
           "mesh.axes.expert is {}, but the model has no experts; leave it out", ranks);
  const auto experts = stacked->shape.front();
  if (experts % ranks == 0) return;
  std::vector<std::int64_t> fitting;
  for (std::int64_t n = 1; n <= experts; ++n)
    if (experts % n == 0) fitting.push_back(n);
  fail(ExitCode::bad_input,
       "mesh.axes.expert is {}, which does not divide the {} experts; use one of {}", ranks,
       experts, fmt::join(fitting, ", "));
}

/// Returns the mesh before any axis is split.
comm::ParallelDims unsplit_mesh(Strategy strategy, const comm::MeshOptions& options,
                                const comm::Topology& topology) {
  const int world = static_cast<int>(topology.node_of.size());
  int groups = world;
  for (const auto& [axis, size] :
       {std::pair("pipeline", options.pipeline), std::pair("tensor", options.tensor),
        std::pair("context", options.context), std::pair("expert", options.expert)}) {
    validate(groups % size == 0,
             "mesh.axes.{} is {}, which does not divide the {} ranks{}; change "
             "one of them",
             axis, size, groups,
             groups == world ? "" : fmt::format(" (of {}) that the other axes leave", world));
    groups /= size;
  }
  const int shard =
      options.shard != 0 ? options.shard : natural_shard_size(strategy, options, topology, groups);
  const int replicate = options.replicate != 0 ? options.replicate : std::max(1, groups / shard);
  std::vector<comm::MeshAxis> axes{{"replicate", replicate}};
  if (options.pipeline > 1) axes.push_back({"pipeline", options.pipeline});
  axes.push_back({"shard", shard});
  if (options.expert > 1) axes.push_back({"expert", options.expert});
  if (options.context > 1) axes.push_back({"context", options.context});
  if (options.tensor > 1) axes.push_back({"tensor", options.tensor});
  comm::ParallelDims dims(std::move(axes));
  check_sizes(strategy, dims, world);
  check_nodes(strategy, options, dims, topology);
  return dims;
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

comm::ParallelDims make_mesh(Strategy strategy, ReshardAfterForward reshard, SplitByNode by_node,
                             const comm::MeshOptions& options, const comm::Topology& topology,
                             const model::ParameterTable& table) {
  check_experts(table, options.expert);
  auto mesh = unsplit_mesh(strategy, options, topology);
  const int shard = mesh.group_size(mesh.named({"shard"}));
  if (reshard_of(strategy, reshard, shard) == Reshard::to_group)
    mesh = mesh.split("shard", static_cast<int>(reshard));
  else if (by_node == SplitByNode::yes)
    mesh = mesh.split("shard", std::gcd(ranks_along_shard_on_node(options, topology), shard));
  return tensor_axis_for(table, mesh);
}

}  // namespace llamesh::sharding
