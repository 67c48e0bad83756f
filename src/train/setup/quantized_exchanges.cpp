#include "train/setup/quantized_exchanges.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace llamesh::train {

bool quantizes_between_nodes(const Inputs& in) {
  return (in.sharding.gather != sharding::GatherDType::automatic &&
          !in.sharding.gather_within_node) ||
         in.sharding.reduce_dtype != sharding::ReduceDType::automatic ||
         in.optimizer.outer.reduce_dtype != sharding::ReduceDType::automatic;
}

Inputs unquantized(Inputs in) {
  if (!in.sharding.gather_within_node) in.sharding.gather = sharding::GatherDType::automatic;
  in.sharding.reduce_dtype = in.optimizer.outer.reduce_dtype = sharding::ReduceDType::automatic;
  in.sharding.error_feedback = in.optimizer.outer.error_feedback = false;
  return in;
}

namespace {

/// Formats "8 ranks on 2 nodes".
std::string describe(const comm::Topology& topology) {
  const auto ranks = topology.node_of.size();
  return fmt::format("{} rank{} on {} node{}", ranks, ranks == 1 ? "" : "s", topology.nodes,
                     topology.nodes == 1 ? "" : "s");
}

/// Checks that quantized gradients stay the same on ranks that hold copies. Replicas take care of
/// that themselves.
void check_copies(const sharding::ShardingOptions& options, const sharding::ShardLayout& layout,
                  const comm::Topology& topology) {
  if (options.reduce_dtype == sharding::ReduceDType::automatic) return;
  for (const auto& unit : layout.units()) {
    if (unit.frozen || comm::within_node(layout.dims(), unit.sharded, topology)) continue;
    for (const auto id : unit.parameters) {
      const auto copied = layout.copied_beside_parts(id) & ~layout.placement(id).partial;
      validate(
          copied.none(),
          "sharding.reduce_dtype is {}, but the ranks along {} hold copies of {}, whose "
          "gradients would be rounded differently on each; set tensor.residual to sequence, or "
          "leave sharding.reduce_dtype out",
          name_in_inputs(options.reduce_dtype), comm::to_string(copied, layout.dims()),
          layout.table()[id].name);
    }
  }
}

/// Checks that replicas quantize their gradients, and keep the errors where they can be fed back.
void check_error_feedback(const sharding::ShardingOptions& options,
                          const sharding::ShardLayout& layout, const comm::Topology& topology) {
  if (!options.error_feedback) return;
  validate(
      options.reduce_dtype != sharding::ReduceDType::automatic,
      "sharding.error_feedback is true, but gradients in full precision leave nothing out; set "
      "sharding.reduce_dtype to int8 or int4");
  validate(options.offload == sharding::Offload::none,
           "sharding.error_feedback is true, but with sharding.offload the errors are not on the "
           "device; set it to false");
  const auto scatters = [&](const auto& unit) {
    return !unit.frozen && !unit.fp32 && !comm::within_node(layout.dims(), unit.sharded, topology);
  };
  validate(
      std::ranges::none_of(layout.units(), scatters),
      "sharding.error_feedback is true, but {} over {} scatters gradients to other nodes, and "
      "errors are kept only between replicas; use hybrid_shard or no_shard, or set it to false",
      name_of(options.strategy), describe(topology));
  validate(
      layout.common_replicas().any(),
      "sharding.error_feedback is true, but not all gradients are summed over the same replicas "
      "(experts with no_shard, or sharding.spec); set it to false");
}

/// Checks that the weights are multiplied in the form in which they are gathered.
void check_form(const Inputs& in) {
  validate(in.sharding.gather != sharding::GatherDType::fp8 ||
               in.precision.linear != model::LinearPrecision::same,
           "sharding.gather is fp8, which sends what linear layers in FP8 multiply by, but "
           "precision.linear is same; set that to fp8, or sharding.gather to int8");
}

/// Checks that there is something to quantize.
void check_quantization(const sharding::ShardingOptions& options,
                        const sharding::ShardLayout& layout, const comm::Topology& topology) {
  using sharding::GatherDType;
  using sharding::ReduceDType;
  const auto crosses = [&](comm::AxisSet axes) {
    return !comm::within_node(layout.dims(), axes, topology);
  };
  const auto any = [&](auto of_unit) { return std::ranges::any_of(layout.units(), of_unit); };
  const bool quantizes = options.gather != GatherDType::automatic;
  validate(quantizes || !options.gather_within_node,
           "sharding.gather_within_node is true, but sharding.gather is auto; set that to int8 or "
           "fp8, or leave both out");
  const auto where = describe(topology);
  validate(!quantizes || any([&](const auto& unit) {
    return options.gather_within_node ? layout.dims().group_size(unit.sharded) > 1
                                      : crosses(unit.sharded);
  }),
           "sharding.gather is {}, but {} over {} gathers no weights{}; leave it out{}",
           name_in_inputs(options.gather), name_of(options.strategy), where,
           options.gather_within_node ? "" : " from other nodes",
           options.gather_within_node ? "" : ", or set sharding.gather_within_node");
  validate(
      options.reduce_dtype == ReduceDType::automatic || any([&](const auto& unit) {
        return !unit.frozen && (crosses(unit.sharded) || crosses(unit.replicas));
      }),
      "sharding.reduce_dtype is {}, but {} over {} sends no gradients to other nodes; leave it "
      "out",
      name_in_inputs(options.reduce_dtype), name_of(options.strategy), where);
}

/// Checks that there is something to quantize between replicas that train apart.
void check_exchange(const optim::OuterOptions& options, const comm::ParallelDims& mesh,
                    const comm::Topology& topology) {
  if (options.reduce_dtype == sharding::ReduceDType::automatic) return;
  validate(
      !comm::within_node(mesh, mesh.apart(), topology),
      "optimizer.outer.reduce_dtype is {}, but the replicas of the mesh {} are on one node, so "
      "nothing is sent to other nodes; leave it out",
      name_in_inputs(options.reduce_dtype), comm::to_string(mesh));
}

}  // namespace

void check_quantized_exchanges(const Inputs& in, const sharding::ShardLayout& layout,
                               const comm::Topology& topology) {
  check_form(in);
  check_quantization(in.sharding, layout, topology);
  check_copies(in.sharding, layout, topology);
  check_error_feedback(in.sharding, layout, topology);
  check_exchange(in.optimizer.outer, layout.dims(), topology);
}

}  // namespace llamesh::train
