#include <gtest/gtest.h>

#include "device/memory_meter.hpp"
#include "runs/small_run.hpp"

// Checks the bytes that a rank holds and sends against docs/measured/performance.md.

namespace llamesh::test {
namespace {

using sharding::Strategy;

train::Inputs measured_inputs(Strategy strategy, const TemporaryFolder& folder) {
  auto in = small_inputs(folder.path());
  in.sharding.strategy = strategy;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  in.train.steps = 2;
  return in;
}

/// Returns the elements, over the shard axis, in units that stay gathered between micro-batches.
std::int64_t kept_by(const sharding::ShardLayout& layout, int prefetch) {
  std::int64_t kept = 0;
  int entered = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const auto& unit = layout.units()[u];
    if (u == 0 || unit.modules != layout.units()[u - 1].modules) ++entered;
    if (entered > 1 + prefetch) break;
    if (unit.sharded.any()) kept += unit.padded_numel;
  }
  return kept;
}

class EveryStrategyMeasured : public testing::TestWithParam<std::tuple<Strategy, DType, DType>> {};

TEST_P(EveryStrategyMeasured, TrafficIsExactlyThatOfTheFormulas) {
  const auto [strategy, parameters, reduce] = GetParam();
  const TemporaryFolder folder;
  auto in = measured_inputs(strategy, folder);
  in.precision = {parameters, reduce};
  const auto setup = plan::make_planned_setup(world(), in);
  const auto outcome = run(world(), in);
  const auto& traffic = outcome.traffic;

  const std::int64_t s = setup.layout->units()[0].shards;
  const std::int64_t r = setup.mesh.ranks() / s;
  const std::int64_t a = setup.micro_batches;
  std::int64_t gathered = 0;  // elements, over all gathers in a micro-batch
  std::int64_t padded = 0;
  for (const auto& unit : setup.layout->units()) {
    // Forward and backward each gather a unit, except the last one, which is kept in between.
    const bool twice = sharding::reshard_of(strategy) == sharding::Reshard::after_forward &&
                       unit.name != "model.norm + lm_head";
    gathered += (twice ? 2 : 1) * unit.padded_numel;
    padded += unit.padded_numel;
  }
  const auto kept = (a - 1) * kept_by(*setup.layout, in.sharding.prefetch);
  EXPECT_EQ(
      traffic.at("shard"),
      ((a * gathered - kept) * size_of(parameters) + a * padded * size_of(reduce)) * (s - 1) / s);
  EXPECT_EQ(traffic.at("replicate"), 2 * (padded / s) * 4 * (r - 1) / r);
  // On an axis over all ranks, peers on the same node need no message.
  const auto crossing = [&](const char* axis, std::int64_t size) {
    const std::int64_t on_node = setup.topology.uniform_ranks_per_node();
    const bool over_all = size == world().size();
    const std::int64_t far = over_all                       ? size - on_node
                             : std::string(axis) == "shard" ? 0
                                                            : size - 1;
    return size == 1 ? 0 : traffic.at(axis) / (size - 1) * far;
  };
  EXPECT_EQ(outcome.traffic_between_nodes.at("shard"), crossing("shard", s));
  EXPECT_EQ(outcome.traffic_between_nodes.at("replicate"), crossing("replicate", r));
}

INSTANTIATE_TEST_SUITE_P(
    Traffic, EveryStrategyMeasured,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard,
                                     Strategy::hybrid_shard_zero2),
                     testing::Values(DType::f32, DType::bf16),
                     testing::Values(DType::f32, DType::bf16)));

// docs/strategies.md: gradients are reduced once a step, and ZeRO-2 then also gathers once.
TEST(ReduceLast, SendsAStepsGradientsOnce) {
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard,
                              Strategy::hybrid_shard}) {
    const TemporaryFolder folder;
    auto in = measured_inputs(strategy, folder);
    in.precision = {DType::bf16, DType::bf16};
    const auto setup = plan::make_planned_setup(world(), in);
    const std::int64_t a = setup.micro_batches, s = setup.layout->units()[0].shards;
    std::int64_t padded = 0, last_unit = 0;
    for (const auto& unit : setup.layout->units()) {
      padded += unit.padded_numel;
      if (unit.name == "model.norm + lm_head") last_unit = unit.padded_numel;
    }
    const bool once = sharding::reshard_of(strategy) == sharding::Reshard::after_backward;
    const auto kept = (a - 1) * kept_by(*setup.layout, in.sharding.prefetch);
    const auto gathered = once ? padded : a * (2 * padded - last_unit) - kept;
    in.sharding.reduce = sharding::Reduce::last;
    EXPECT_EQ(run(world(), in).traffic.at("shard"), (gathered + padded) * 2 * (s - 1) / s)
        << name_of(strategy);
  }
}

/// Elements that a rank gathers per micro-batch: over the shard axis and, if units are resharded to
/// a group with N ranks, within that group. The last unit is gathered once.
struct Gathered {
  std::int64_t over_shard = 0, over_group = 0, once = 0;
};
Gathered gathered_by(const sharding::ShardLayout& layout, sharding::Reshard rule) {
  Gathered sum;
  for (const auto& unit : layout.units()) {
    const bool again = unit.name != "model.norm + lm_head";
    sum.once += unit.padded_numel;
    sum.over_shard += unit.padded_numel;
    if (again && rule == sharding::Reshard::after_forward) sum.over_shard += unit.padded_numel;
    if (again && rule == sharding::Reshard::to_group) sum.over_group += unit.padded_numel;
  }
  return sum;
}

using ReshardingCase = std::tuple<Strategy, int, DType, int>;
class EveryResharding : public testing::TestWithParam<ReshardingCase> {};

// docs/strategies.md: 2P/N bytes for bf16 secondary shards, gathered within the group.
TEST_P(EveryResharding, TrafficIsExactlyThatOfTheFormulas) {
  const auto [strategy, n, dtype, prefetch] = GetParam();
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = measured_inputs(strategy, folder);
  in.sharding.reshard_after_forward = sharding::ReshardAfterForward{n};
  in.sharding.prefetch = prefetch;
  in.precision.parameters = dtype;
  const auto setup = plan::make_planned_setup(world(), in);
  const auto gathered = gathered_by(
      *setup.layout, sharding::reshard_of(strategy, in.sharding.reshard_after_forward, 4));
  const std::int64_t b = size_of(dtype);
  const auto a = setup.micro_batches;
  const auto kept = (a - 1) * kept_by(*setup.layout, prefetch);
  const std::int64_t over_shard =
      ((a * gathered.over_shard - kept) * b + a * gathered.once * 4) * 3 / 4;
  const std::int64_t over_group = n > 1 ? a * gathered.over_group * b * (n - 1) / n : 0;
  const auto outcome = run(world(), in);
  EXPECT_EQ(outcome.traffic.at("shard"), over_shard + over_group);
  EXPECT_EQ(outcome.traffic.at("replicate"), 0);
  EXPECT_EQ(outcome.traffic.size(), 2U);
  // With two ranks per node, two of three peers along the shard axis are on the other node.
  EXPECT_EQ(outcome.traffic_between_nodes.at("shard"), over_shard * 2 / 3);
}

INSTANTIATE_TEST_SUITE_P(
    Traffic, EveryResharding,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op),
                     testing::Values(0, 1, 2), testing::Values(DType::f32, DType::bf16),
                     testing::Values(0, 4)));

/// This rank's additional bytes: after its second step, and the peak within it.
struct Footprint {
  std::int64_t allocated_after_step, peak;
};
Footprint footprint_of(const train::Inputs& in) {
  const auto before = device::MemoryMeter::instance().in_use();
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  trainer.train_step();
  trainer.train_step();
  const auto& meter = device::MemoryMeter::instance();
  return {meter.in_use() - before, meter.peak() - before};
}

TEST(SecondaryShards, AreAllThatIsHeldMoreAtRest) {
  if (world().size() != 4) return;
  for (const auto dtype : {DType::f32, DType::bf16}) {
    const TemporaryFolder folder;
    auto in = measured_inputs(Strategy::full_shard, folder);
    in.precision.parameters = dtype;
    footprint_of(in);  // warm-up: threads keep some memory from one run to the next
    const auto without = footprint_of(in);
    in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
    const auto setup = plan::make_planned_setup(world(), in);
    const auto gathered = gathered_by(*setup.layout, sharding::Reshard::to_group);
    EXPECT_EQ(footprint_of(in).allocated_after_step - without.allocated_after_step,
              gathered.over_group / 2 * size_of(dtype));
  }
}

// Each rank is on its own node, so that no memory is shared; equal layers are the largest units.
TEST(Prefetch, HoldsTheUnitsAheadAtThePeak) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = measured_inputs(Strategy::full_shard, folder);
  in.mesh.ranks_per_node = 1;
  in.model.num_hidden_layers = 8;
  in.model.vocab_size = 256;
  in.precision.parameters = DType::bf16;
  const auto setup = plan::make_planned_setup(world(), in);
  const auto layer = 2 * setup.layout->units()[1].padded_numel;
  in.sharding.prefetch = 0;
  footprint_of(in);
  const auto none = footprint_of(in);
  for (const int prefetch : {1, 2, 3, 4}) {
    in.sharding.prefetch = prefetch;
    const auto ahead = footprint_of(in);
    EXPECT_EQ(ahead.peak - none.peak, prefetch * layer);
    EXPECT_EQ(ahead.allocated_after_step, none.allocated_after_step);
  }
  in.sharding.prefetch_limit = 5 * layer / 2;
  EXPECT_EQ(footprint_of(in).peak - none.peak, 2 * layer);
}

// Weights that a spec leaves unsharded are not gathered; their gradients are reduced over all data
// ranks at once.
TEST(Spec, TrafficOverSeveralAxesHasALineOfItsOwn) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = measured_inputs(Strategy::hybrid_shard, folder);
  in.precision.reduce = DType::bf16;
  in.sharding.spec.emplace();
  for (const char* name : {"model.embed_tokens", "lm_head", "model.layers.*.mlp.gate_proj"})
    in.sharding.spec->entries.push_back({name + std::string(".weight"), {{"shard"}, {}}, "test"});
  const auto setup = plan::make_planned_setup(world(), in);
  std::int64_t gathered = 0, sharded = 0, whole = 0;
  for (const auto& unit : setup.layout->units()) {
    (unit.sharded.any() ? sharded : whole) += unit.padded_numel;
    if (unit.sharded.any())
      gathered += (unit.name.starts_with("model.norm + lm_head") ? 1 : 2) * unit.padded_numel;
  }
  const auto traffic = run(world(), in).traffic;
  EXPECT_GT(whole, 0);
  const auto a = setup.micro_batches;
  const auto kept = (a - 1) * kept_by(*setup.layout, in.sharding.prefetch);
  EXPECT_EQ(traffic.at("shard"), ((a * gathered - kept) * 4 + a * sharded * 2) / 2);
  EXPECT_EQ(traffic.at("replicate"), 2 * (sharded / 2) * 4 / 2);
  EXPECT_EQ(traffic.at("replicate x shard"), 2 * whole * 4 * 3 / 4);
  EXPECT_EQ(traffic.size(), 3U);
}

// docs/strategies.md: a boundary between two chunks takes M D b in each direction and micro-batch.
TEST(PipelineParallel, TrafficIsExactlyThatOfTheFormulas) {
  if (world().size() != 4) return;
  for (const auto& [stages, chunks] : {std::pair(2, 1), {2, 2}, {4, 1}, {4, 2}})
    for (const auto dtype : {DType::f32, DType::bf16}) {
      const TemporaryFolder folder;
      auto in = measured_inputs(Strategy::hybrid_shard, folder);
      in.model.num_hidden_layers = 8;
      in.mesh = {.pipeline = stages};
      in.pipeline.chunks = chunks;
      in.precision.parameters = dtype;
      in.train.global_batch = 16;
      const auto setup = plan::make_planned_setup(world(), in);
      const std::int64_t boundary =
          in.train.micro_batch * in.data.sequence_length * in.model.hidden_size * size_of(dtype);
      const int stage = setup.stage(world().rank());
      // A chunk sends activations on, and gradients back, except at either end of the model.
      const int sends = 2 * chunks - (stage == 0 ? 1 : 0) - (stage == stages - 1 ? 1 : 0);
      const auto outcome = run(world(), in);
      EXPECT_EQ(outcome.traffic.at("pipeline"), setup.micro_batches * sends * boundary)
          << stages << " stages, " << chunks << " chunks";
    }
}

/// Returns the bytes of norm gradients on this rank that are summed over the tensor axis.
std::int64_t partial_bytes(const sharding::ShardLayout& layout) {
  std::int64_t bytes = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (const auto& piece : layout.pieces(u, world().rank()))
      if (layout.placement(piece.parameter).partial.any()) bytes += 4 * piece.count;
  return bytes;
}

using MeasuredTensorCase =
    std::tuple<sharding::ResidualLayout, model::ActivationCheckpointing, DType>;
class TensorAxisMeasured : public testing::TestWithParam<MeasuredTensorCase> {};

// docs/strategies.md: gathering or reduce-scattering the residual stream (M, D) takes M D b
// (t-1)/t.
TEST_P(TensorAxisMeasured, TrafficIsExactlyThatOfTheFormulas) {
  if (world().size() != 4) return;
  using enum model::ActivationCheckpointing;
  const auto [residual, checkpointing, dtype] = GetParam();
  using enum sharding::ResidualLayout;
  const TemporaryFolder folder;
  auto in = measured_inputs(Strategy::full_shard, folder);
  in.mesh = {.tensor = 2};
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 257;
  in.tensor.residual = residual;
  in.memory.activation_checkpointing = checkpointing;
  in.precision.parameters = dtype;
  const auto setup = plan::make_planned_setup(world(), in);
  const std::int64_t t = 2;
  const std::int64_t tokens = in.train.micro_batch * in.data.sequence_length;
  const std::int64_t layers = in.model.num_hidden_layers;
  // Per micro-batch, by rows or columns: 4 in forward and 6 in backward for each layer, and 4 for
  // embedding and head. Whole: an all-reduce counts as two. The last layer is not recomputed.
  const std::int64_t recomputed = checkpointing == full ? layers - 1 : 0;
  const std::int64_t moves =
      residual == whole ? 8 * layers + 4 + 2 * recomputed : 10 * layers + 4 + 3 * recomputed;
  const std::int64_t stream = tokens * in.model.hidden_size * size_of(dtype);
  const std::int64_t losses = tokens * 3 * 4 * (t - 1);
  // By columns, every norm gathers one number per row: two norms per layer, and the last one.
  const std::int64_t again = checkpointing == none ? 0 : 2 * (layers - 1);
  const std::int64_t sums =
      residual == hidden ? (2 * (2 * layers + 1) + again) * tokens * 4 * (t - 1) : 0;
  const auto norms = 2 * partial_bytes(*setup.layout) * (t - 1) / t;
  EXPECT_EQ(norms > 0, residual == sequence);
  EXPECT_EQ(run(world(), in).traffic.at("tensor"),
            setup.micro_batches * (moves * stream * (t - 1) / t + losses + sums) + norms);
}

INSTANTIATE_TEST_SUITE_P(Traffic, TensorAxisMeasured,
                         testing::Combine(testing::Values(sharding::ResidualLayout::sequence,
                                                          sharding::ResidualLayout::whole,
                                                          sharding::ResidualLayout::hidden),
                                          testing::Values(model::ActivationCheckpointing::none,
                                                          model::ActivationCheckpointing::selective,
                                                          model::ActivationCheckpointing::full),
                                          testing::Values(DType::f32, DType::bf16)));

TEST(TensorParallel, ARankHolds16BytesOfItsPartOfAParameter) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = measured_inputs(Strategy::full_shard, folder);
  in.mesh = {.tensor = 2};
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 257;
  in.model.hidden_size = 96;
  in.model.intermediate_size = 1024;
  footprint_of(in);  // warm-up: threads keep some memory from one run to the next
  const auto before = device::MemoryMeter::instance().in_use();
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  trainer.train_step();
  const auto held = static_cast<double>(device::MemoryMeter::instance().in_use() - before);
  const double formula = 16.0 * static_cast<double>(setup.table->numel()) / 4;
  EXPECT_GE(held, formula);
  EXPECT_LE(held, 1.02 * formula + (1 << 17)) << "the places of gathered rows included";
}

class AtRest : public testing::TestWithParam<std::tuple<Strategy, DType>> {};

// Master, two moments and gradient take 16 bytes per parameter over the shard axis; kept bf16
// weights take 2 more.
TEST_P(AtRest, ARankHolds16Or18BytesAParameter) {
  const auto [strategy, parameters] = GetParam();
  const TemporaryFolder folder;
  auto in = measured_inputs(strategy, folder);
  in.precision.parameters = parameters;
  in.model.hidden_size = 96;  // makes rotary table and padding negligible
  in.model.intermediate_size = 512;
  const auto before = device::MemoryMeter::instance().in_use();
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  trainer.train_step();
  const auto after_one = device::MemoryMeter::instance().in_use() - before;
  const auto record = trainer.train_step();
  const auto held = device::MemoryMeter::instance().in_use() - before;
  const double bytes = parameters == DType::bf16 ? 18 : 16;
  const double formula =
      bytes * static_cast<double>(setup.table->numel()) / setup.layout->units()[0].shards;
  constexpr double staging =
      1 << 21;  // messages in flight, on an axis that uses MPI point-to-point
  EXPECT_GE(static_cast<double>(held), formula);
  EXPECT_LE(static_cast<double>(held), 1.02 * formula + 2 * staging);
  EXPECT_EQ(held, after_one) << "the second step left something behind";
  EXPECT_GT(record.peak, record.allocated_after_step);
}

INSTANTIATE_TEST_SUITE_P(
    Memory, AtRest,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard,
                                     Strategy::hybrid_shard_zero2),
                     testing::Values(DType::f32, DType::bf16)));

}  // namespace
}  // namespace llamesh::test
