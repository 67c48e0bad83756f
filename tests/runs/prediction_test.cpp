#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "device/memory_meter.hpp"
#include "plan/step_plan.hpp"
#include "runs/small_run.hpp"

// Checks the planner's predictions for a step against the step.

namespace llamesh::test {
namespace {

using device::MemoryByUse;
using device::MemoryUse;
using model::ActivationCheckpointing;
using sharding::ResidualLayout;
using sharding::Strategy;
using sharding::Wrap;

/// Returns hardware with arbitrary rates, which do not affect memory and traffic.
device::Hardware this_machine() {
  device::Hardware hardware;
  hardware.kind = device::Kind::cpu;
  hardware.memory_bandwidth = hardware.peak_bf16 = hardware.peak_fp32 = 1e9;
  hardware.host_bandwidth = hardware.host_link = 1e9;
  hardware.gemm_share = hardware.attention_forward_share = hardware.attention_backward_share = 1;
  hardware.within_node = hardware.between_nodes = {.bandwidth = 1e9, .latency = 1e-6};
  return hardware;
}

train::Inputs predicted_inputs(const TemporaryFolder& folder) {
  auto in = small_inputs(folder.path());
  in.model.hidden_size = 96;
  in.model.intermediate_size = 512;
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 516;
  in.train.micro_batch = 3;
  in.train.steps = 2;
  return in;
}

MemoryByUse difference(MemoryByUse a, const MemoryByUse& b) {
  for (std::size_t use = 0; use < a.size(); ++use) a[use] -= b[use];
  return a;
}

void expect_within_3_percent(std::int64_t planned, std::int64_t measured, const char* what) {
  EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(measured),
              0.03 * static_cast<double>(measured))
      << what;
}

std::int64_t sum(const MemoryByUse& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::int64_t scratch(const MemoryByUse& bytes) {
  return bytes[static_cast<std::size_t>(MemoryUse::scratch)];
}

/// Measures the GEMM peak once, as a run does before its first step; its scratch stays allocated.
void measure_once(train::Trainer& trainer, DType dtype) {
  static std::set<DType> measured;
  if (measured.insert(dtype).second) trainer.measure_gemm_peak();
}

/// Checks that traffic, and all memory uses except scratch, match the plan to the byte. Scratch
/// kept by kernels also stays from earlier tests; in the first test it must match too.
void expect_as_planned(const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(world(), in);
  auto& meter = device::MemoryMeter::instance();
  auto before = meter.by_use();
  const auto on_host_before = device::MemoryMeter::host().in_use();
  const auto earlier_scratch =
      std::exchange(before[static_cast<std::size_t>(MemoryUse::scratch)], 0);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  measure_once(trainer, in.precision.parameters);
  const auto planned = plan::plan_step(setup, this_machine(), world().rank());
  trainer.train_step();
  MemoryByUse after_step{}, at_peak{};
  const auto record = trainer.train_step([] {}, [&](double) {  // when the trainer measures
    after_step = difference(meter.by_use(), before);
    at_peak = difference(meter.by_use_at_peak(), before);
    return 0;
  });
  for (std::size_t use = 0; use < at_peak.size(); ++use) {
    const auto name = static_cast<MemoryUse>(use);
    if (name == MemoryUse::scratch) continue;
    EXPECT_EQ(planned.at_peak[use], at_peak[use]) << name_of(name);
  }
  const auto planned_scratch = scratch(planned.at_peak);
  EXPECT_EQ(planned.allocated_after_step - planned_scratch, sum(after_step) - scratch(after_step));
  EXPECT_LE(planned_scratch, scratch(at_peak));
  if (earlier_scratch == 0) {
    expect_within_3_percent(planned.allocated_after_step, sum(after_step), "memory after a step");
    expect_within_3_percent(planned.peak, sum(at_peak), "peak");
  }
  EXPECT_EQ(world().max(planned.on_host, "planned on the host"),  // stages differ
            record.on_host - on_host_before);
  auto traffic = planned.traffic, between_nodes = planned.traffic_between_nodes;
  if (planned.exchange) {  // in every step
    for (const auto& [axis, bytes] : planned.exchange->traffic) traffic[axis] += bytes;
    for (const auto& [axis, bytes] : planned.exchange->traffic_between_nodes)
      between_nodes[axis] += bytes;
  }
  EXPECT_EQ(traffic, record.traffic);
  EXPECT_EQ(between_nodes, record.traffic_between_nodes);
}

using PredictedCase = std::tuple<Strategy, Wrap, ActivationCheckpointing, DType>;
class EveryStrategyPredicted : public testing::TestWithParam<PredictedCase> {};

TEST_P(EveryStrategyPredicted, TakesWhatIsPlanned) {
  const auto [strategy, wrap, checkpointing, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = strategy;
  in.sharding.wrap = {.wrap = wrap, .min_numel = 50'000};
  in.memory.activation_checkpointing = checkpointing;
  in.precision.parameters = dtype;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  if (wrap == Wrap::size) in.sharding.keep_bf16_weights = sharding::KeepBf16Weights::no;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(
    Prediction, EveryStrategyPredicted,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard,
                                     Strategy::hybrid_shard_zero2),
                     testing::Values(Wrap::layer, Wrap::size, Wrap::none),
                     testing::Values(ActivationCheckpointing::none,
                                     ActivationCheckpointing::selective,
                                     ActivationCheckpointing::full),
                     testing::Values(DType::f32, DType::bf16)));

using PredictedTensorCase = std::tuple<ResidualLayout, int, ActivationCheckpointing, DType>;
class TensorAxisPredicted : public testing::TestWithParam<PredictedTensorCase> {};

TEST_P(TensorAxisPredicted, TakesWhatIsPlanned) {
  if (world().size() % 2 != 0) return;
  const auto [residual, ranks_per_node, checkpointing, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = Strategy::full_shard;
  in.mesh = {.tensor = 2, .allow_tensor_across_nodes = true, .ranks_per_node = ranks_per_node};
  in.tensor.residual = residual;
  in.memory.activation_checkpointing = checkpointing;
  in.precision.parameters = dtype;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(Prediction, TensorAxisPredicted,
                         testing::Combine(testing::Values(ResidualLayout::sequence,
                                                          ResidualLayout::whole,
                                                          ResidualLayout::hidden),
                                          testing::Values(0, 1),
                                          testing::Values(ActivationCheckpointing::none,
                                                          ActivationCheckpointing::selective,
                                                          ActivationCheckpointing::full),
                                          testing::Values(DType::f32, DType::bf16)));

using PredictedContextCase = std::tuple<int, int, ActivationCheckpointing, DType>;
class ContextAxisPredicted : public testing::TestWithParam<PredictedContextCase> {};

TEST_P(ContextAxisPredicted, TakesWhatIsPlanned) {
  const auto [ranks, ranks_per_node, checkpointing, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = Strategy::full_shard;
  in.mesh = {.context = ranks, .ranks_per_node = ranks_per_node};
  in.memory.activation_checkpointing = checkpointing;
  in.precision.parameters = dtype;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(Prediction, ContextAxisPredicted,
                         testing::Combine(testing::Values(2, 4), testing::Values(0, 1),
                                          testing::Values(ActivationCheckpointing::none,
                                                          ActivationCheckpointing::full),
                                          testing::Values(DType::f32, DType::bf16)));

using PredictedExpertsCase = std::tuple<int, int, ActivationCheckpointing, DType>;
class ExpertsPredicted : public testing::TestWithParam<PredictedExpertsCase> {};

TEST_P(ExpertsPredicted, TakeWhatIsPlanned) {
  const auto [tensor, micro_batch, checkpointing, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.model.family = "mixtral";
  in.model.num_experts = 8;
  in.model.num_experts_per_tok = 2;
  in.sharding.strategy = Strategy::full_shard;
  in.mesh = {.tensor = tensor};
  in.train.micro_batch = micro_batch;
  in.train.global_batch = std::int64_t{micro_batch} * world().size();
  in.memory.activation_checkpointing = checkpointing;
  in.precision.parameters = dtype;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(Prediction, ExpertsPredicted,
                         testing::Combine(testing::Values(1, 2), testing::Values(1, 4),
                                          testing::Values(ActivationCheckpointing::none,
                                                          ActivationCheckpointing::full),
                                          testing::Values(DType::f32, DType::bf16)));

using PredictedFp8Case = std::tuple<const char*, int, DType>;
class Fp8Predicted : public testing::TestWithParam<PredictedFp8Case> {};

TEST_P(Fp8Predicted, TakesWhatIsPlanned) {
  const auto [family, tensor, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.model.family = family;
  if (in.model.family == "mixtral") in.model.num_experts = 8, in.model.num_experts_per_tok = 2;
  in.sharding.strategy = Strategy::full_shard;
  in.mesh = {.tensor = tensor};
  in.precision = {.parameters = dtype, .linear = model::LinearPrecision::fp8};
  expect_as_planned(in);
}

TEST(Fp8Prediction, HasGathers) {
  if (world().size() != 4) return;
  for (const int ranks_per_node : {1, 2, 4})
    for (const auto dtype : {DType::f32, DType::bf16}) {
      const TemporaryFolder folder;
      auto in = predicted_inputs(folder);
      in.sharding.strategy = Strategy::full_shard;
      in.sharding.gather = sharding::GatherDType::fp8;
      in.sharding.gather_within_node = true;
      in.mesh.ranks_per_node = ranks_per_node;
      in.precision = {.parameters = dtype, .linear = model::LinearPrecision::fp8};
      expect_as_planned(in);
    }
}

INSTANTIATE_TEST_SUITE_P(Prediction, Fp8Predicted,
                         testing::Combine(testing::Values("llama", "mixtral"),
                                          testing::Values(1, 2),
                                          testing::Values(DType::f32, DType::bf16)));

using PredictedQuantizedCase =
    std::tuple<sharding::GatherDType, sharding::ReduceDType, int, Strategy, DType>;
class QuantizedPredicted : public testing::TestWithParam<PredictedQuantizedCase> {};

TEST_P(QuantizedPredicted, TakesWhatIsPlanned) {
  const auto [gather, reduce, ranks_per_node, strategy, dtype] = GetParam();
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = strategy;
  in.mesh.ranks_per_node = ranks_per_node;
  const bool gathers = strategy == Strategy::full_shard || ranks_per_node > 1;
  in.sharding.gather = gathers ? gather : sharding::GatherDType::automatic;
  in.sharding.gather_within_node = in.sharding.gather != sharding::GatherDType::automatic;
  in.sharding.reduce_dtype = reduce;
  in.sharding.error_feedback =
      strategy == Strategy::hybrid_shard && reduce == sharding::ReduceDType::int4;
  in.precision.parameters = dtype;
  expect_as_planned(in);
}

TEST(QuantizedPrediction, HasCopiesInFp32) {
  if (world().size() != 4) return;
  for (const bool apart : {false, true}) {
    const TemporaryFolder folder;
    auto in = predicted_inputs(folder);
    in.sharding.strategy = Strategy::hybrid_shard;
    in.mesh.ranks_per_node = 2;
    in.mesh.replicate = in.mesh.tensor = 2;
    const auto dtype = sharding::ReduceDType::int4;
    if (apart)
      in.optimizer.outer = {.every_steps = 1, .reduce_dtype = dtype, .error_feedback = true};
    else
      in.sharding.reduce_dtype = dtype;
    in.sharding.error_feedback = !apart;
    expect_as_planned(in);
  }
}

TEST(QuantizedPrediction, HasSecondaryShardsAsCodes) {
  if (world().size() != 4) return;
  for (const int ranks_per_node : {1, 2}) {
    const TemporaryFolder folder;
    auto in = predicted_inputs(folder);
    in.sharding.strategy = Strategy::full_shard;
    in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
    in.mesh.ranks_per_node = ranks_per_node;
    in.sharding.gather = sharding::GatherDType::int8;
    expect_as_planned(in);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Prediction, QuantizedPredicted,
    testing::Combine(testing::Values(sharding::GatherDType::automatic, sharding::GatherDType::int8),
                     testing::Values(sharding::ReduceDType::int8, sharding::ReduceDType::int4),
                     testing::Values(1, 2),
                     testing::Values(Strategy::full_shard, Strategy::hybrid_shard),
                     testing::Values(DType::f32, DType::bf16)));

TEST(OuterPrediction, HasExchangesBetweenReplicas) {
  if (world().size() < 2) return;
  for (const auto dtype :
       {sharding::ReduceDType::automatic, sharding::ReduceDType::int8, sharding::ReduceDType::int4})
    for (const auto& [strategy, offload] :
         {std::pair(Strategy::no_shard, sharding::Offload::none),
          std::pair(Strategy::hybrid_shard, sharding::Offload::none),
          std::pair(Strategy::hybrid_shard, sharding::Offload::all)})
      for (const int ranks_per_node : {world().size(), world().size() / 2}) {
        if (ranks_per_node == world().size() && dtype != sharding::ReduceDType::automatic) continue;
        const TemporaryFolder folder;
        auto in = predicted_inputs(folder);
        in.sharding.strategy = strategy;
        in.sharding.offload = offload;
        in.mesh.ranks_per_node = ranks_per_node;
        in.mesh.replicate = strategy == Strategy::no_shard ? world().size() : 2;
        in.optimizer.outer = {.every_steps = 1, .reduce_dtype = dtype};
        SCOPED_TRACE(fmt::format("{}, {} per node", static_cast<int>(dtype), ranks_per_node));
        expect_as_planned(in);
      }
}

/// Activations are divided; each rank has room for all keys and values, for one layer at a time.
TEST(ContextAxisPrediction, DividesActivations) {
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = Strategy::full_shard;
  in.data.sequence_length = 4096;
  in.model.num_hidden_layers = 12;
  const auto at_peak = [&](int context, MemoryUse use) {
    in.mesh.context = context;
    const auto setup = train::plan_setup(in, comm::planned_topology(4, 4, 0));
    return plan::plan_step(setup, this_machine(), 0).at_peak[static_cast<std::size_t>(use)];
  };
  const auto whole = static_cast<double>(at_peak(1, MemoryUse::activations));
  const auto keys = in.train.micro_batch * 4096 * 2 * in.model.num_key_value_heads *
                    in.model.resolved().head_dim * size_of(DType::f32);
  for (const int context : {2, 4}) {
    const auto part = static_cast<double>(at_peak(context, MemoryUse::activations));
    EXPECT_LT(part, 1.1 * whole / context);
    EXPECT_LT(static_cast<double>(at_peak(context, MemoryUse::context_parallel)),
              4.1 * static_cast<double>(keys));
  }
}

using Reshard = sharding::ReshardAfterForward;
class Gathers : public testing::TestWithParam<std::tuple<Reshard, int, DType>> {};

TEST_P(Gathers, TakeWhatIsPlanned) {
  const auto [reshard, prefetch, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.reshard_after_forward = reshard;
  in.sharding.prefetch = prefetch;
  in.precision.parameters = dtype;
  in.mesh.ranks_per_node = world().size() / 2;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(Prediction, Gathers,
                         testing::Combine(testing::Values(Reshard::no, Reshard{2}),
                                          testing::Values(0, 3),
                                          testing::Values(DType::f32, DType::bf16)));

using sharding::Offload;
using PlannedOffload = std::tuple<Strategy, Offload, Wrap, DType>;
class Offloading : public testing::TestWithParam<PlannedOffload> {};

TEST_P(Offloading, TakesWhatIsPlanned) {
  const auto [strategy, offload, wrap, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = strategy;
  in.sharding.offload = offload;
  in.sharding.wrap = {.wrap = wrap, .min_numel = 50'000};
  in.precision.parameters = dtype;
  in.mesh.ranks_per_node = world().size() / 2;
  if (wrap == Wrap::size) {
    in.mesh.ranks_per_node = 0;
    in.mesh.tensor = 2;
    in.memory.activation_checkpointing = ActivationCheckpointing::full;
  }
  in.memory.activation_offload = dtype == DType::bf16;
  in.model.num_hidden_layers = 5;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(
    Prediction, Offloading,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard),
                     testing::Values(Offload::optimizer, Offload::all),
                     testing::Values(Wrap::layer, Wrap::size),
                     testing::Values(DType::f32, DType::bf16)));

using PlannedReduce = std::tuple<Strategy, Offload, DType>;
class ReduceLast : public testing::TestWithParam<PlannedReduce> {};

TEST_P(ReduceLast, TakesWhatIsPlanned) {
  const auto [strategy, offload, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = strategy;
  in.sharding.reduce = sharding::Reduce::last;
  in.sharding.offload = offload;
  in.precision = {.parameters = dtype, .reduce = dtype};
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  in.train.global_batch = in.train.micro_batch * world().size() * 3;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(
    Prediction, ReduceLast,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard),
                     testing::Values(Offload::none, Offload::all),
                     testing::Values(DType::f32, DType::bf16)));

using ReproducibleCase = std::tuple<Strategy, sharding::Reduce, sharding::Offload>;
class MeshReproduciblePredicted : public testing::TestWithParam<ReproducibleCase> {};

// Partial sums of micro-batches take memory, and each thread's part of a product scratch.
TEST_P(MeshReproduciblePredicted, TakesWhatIsPlanned) {
  const auto [strategy, reduce, offload] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = strategy;
  in.sharding.reduce = reduce;
  in.sharding.offload = offload;
  in.mesh.ranks_per_node = world().size() / 2;
  in.train.micro_batch = 2;
  in.train.global_batch = std::int64_t{8} * world().size();
  in.train.threads = 2;
  in.train.reproducible = train::Reproducible::mesh;
  expect_as_planned(in);
}

TEST(MeshReproduciblePrediction, HasVirtualRanks) {
  for (const auto residual : {sharding::ResidualLayout::sequence, sharding::ResidualLayout::hidden})
    for (const int tensor : {1, 2}) {
      if (world().size() % tensor != 0) continue;
      const TemporaryFolder folder;
      auto in = predicted_inputs(folder);
      in.model.num_attention_heads = 4;
      in.model.num_key_value_heads = 2;
      in.model.hidden_size = 64;
      in.model.intermediate_size = 56;
      in.model.vocab_size = 264;
      in.tensor.residual = residual;
      in.sharding.strategy = Strategy::full_shard;
      in.mesh.tensor = tensor;
      in.train.micro_batch = 2;
      in.train.global_batch = std::int64_t{4} * world().size();
      in.train.reproducible = train::Reproducible::mesh;
      in.train.reproducible_tensor = 4;
      in.train.reproducible_context = tensor == 1 ? 2 : 1;
      expect_as_planned(in);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Prediction, MeshReproduciblePredicted,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::no_shard,
                                     Strategy::hybrid_shard),
                     testing::Values(sharding::Reduce::each, sharding::Reduce::last),
                     testing::Values(sharding::Offload::none, sharding::Offload::all)));

using PlannedPipeline = std::tuple<int, int, ActivationCheckpointing, DType>;
class PipelinePredicted : public testing::TestWithParam<PlannedPipeline> {};

TEST_P(PipelinePredicted, TakesWhatIsPlanned) {
  const auto [stages, chunks, checkpointing, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.model.num_hidden_layers = 9;
  in.model.tie_word_embeddings = dtype == DType::bf16;
  in.mesh = {.pipeline = stages, .ranks_per_node = chunks};
  in.pipeline.chunks = chunks;
  in.sharding.offload = chunks == 1 ? sharding::Offload::none : sharding::Offload::optimizer;
  in.memory.activation_checkpointing = checkpointing;
  in.memory.activation_offload = stages == 2;
  in.precision.parameters = dtype;
  in.train.global_batch = in.train.micro_batch * 16;
  expect_as_planned(in);
}

INSTANTIATE_TEST_SUITE_P(Prediction, PipelinePredicted,
                         testing::Combine(testing::Values(2, 4), testing::Values(1, 2),
                                          testing::Values(ActivationCheckpointing::none,
                                                          ActivationCheckpointing::selective,
                                                          ActivationCheckpointing::full),
                                          testing::Values(DType::f32, DType::bf16)));

TEST(Prediction, HoldsForFrozenParameters) {
  for (const auto offload : {Offload::none, Offload::optimizer, Offload::all})
    for (const auto strategy : {Strategy::full_shard, Strategy::hybrid_shard}) {
      const TemporaryFolder folder;
      auto in = predicted_inputs(folder);
      in.sharding.strategy = strategy;
      in.sharding.offload = offload;
      in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
      in.precision.parameters = DType::bf16;
      in.train.trained.freeze = {"model.embed_tokens", "model.layers.0", "*.q_proj", "*.down_proj"};
      for (const auto reduce : {sharding::Reduce::each, sharding::Reduce::last}) {
        in.sharding.reduce = reduce;
        expect_as_planned(in);
      }
    }
}

TEST(Prediction, HoldsForABaseAsCodes) {
  for (const auto offload : {Offload::none, Offload::all})
    for (const int ranks_per_node : {0, 1}) {
      const TemporaryFolder folder;
      auto in = predicted_inputs(folder);
      in.model.lora = model::Lora{.rank = 3, .base = model::BaseDType::nf4};
      in.sharding.strategy = Strategy::full_shard;
      in.sharding.offload = offload;
      in.mesh.ranks_per_node = ranks_per_node;
      in.precision.parameters = DType::bf16;
      expect_as_planned(in);
    }
}

TEST(Prediction, HoldsForPairs) {
  for (const int context : {1, 2}) {
    const TemporaryFolder folder;
    auto in = predicted_inputs(folder);
    std::string lines;
    for (int i = 0; i < 80; ++i)
      lines +=
          fmt::format(R"({{"prompt": "{}", "chosen": "a{}", "rejected": "b"}})", i, i * i) + "\n";
    in.data.train = {folder.write("pairs.jsonl", lines)};
    in.data.format = data::Format::jsonl;
    in.data.sequence_length = 48;
    in.train.objective = train::Objective::dpo;
    in.sharding.strategy = Strategy::full_shard;
    in.mesh.context = world().size() % 2 == 0 ? context : 1;
    expect_as_planned(in);
  }
}

TEST(Prediction, HoldsForWhatASpecLeavesUnsharded) {
  const TemporaryFolder folder;
  auto in = predicted_inputs(folder);
  in.sharding.strategy = Strategy::hybrid_shard;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  in.precision.reduce = DType::bf16;
  in.optimizer.name = optim::OptimizerName::sgd;
  in.sharding.spec.emplace();
  for (const char* name : {"model.embed_tokens", "lm_head", "model.layers.*.mlp.gate_proj"})
    in.sharding.spec->entries.push_back({name + std::string(".weight"), {{"shard"}, {}}, "test"});
  expect_as_planned(in);
}

}  // namespace
}  // namespace llamesh::test
