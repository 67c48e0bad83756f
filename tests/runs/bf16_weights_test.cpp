#include <gtest/gtest.h>

#include <algorithm>

#include "device/memory_meter.hpp"
#include "plan/step_plan.hpp"
#include "runs/small_run.hpp"

// Runs that keep bf16 weights beside the fp32 masters must match runs that cast them at each
// gather.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::KeepBf16Weights;
using sharding::Strategy;

/// Returns inputs with accumulation; with an even rank count, on two nodes.
train::Inputs bf16_inputs(Strategy strategy, const TemporaryFolder& folder) {
  auto in = small_inputs(folder.path());
  in.sharding.strategy = strategy;
  in.precision.parameters = DType::bf16;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  in.train.steps = 3;
  return in;
}

void expect_same_bits(train::Inputs in) {
  in.sharding.keep_bf16_weights = KeepBf16Weights::no;
  const auto cast = run(world(), in);
  in.sharding.keep_bf16_weights = KeepBf16Weights::yes;
  const auto kept = run(world(), in);
  EXPECT_EQ(kept.losses, cast.losses);
  EXPECT_EQ(kept.norms, cast.norms);
  EXPECT_EQ(kept.masters, cast.masters);
}

class EveryStrategyWithBf16Weights
    : public testing::TestWithParam<std::tuple<Strategy, optim::OptimizerName>> {};

TEST_P(EveryStrategyWithBf16Weights, GivesTheSameBits) {
  const auto [strategy, optimizer] = GetParam();
  const TemporaryFolder folder;
  auto in = bf16_inputs(strategy, folder);
  in.optimizer.name = optimizer;
  if (optimizer == optim::OptimizerName::sgd) {
    in.sharding.wrap = {sharding::Wrap::size, 2500};
    in.precision.reduce = DType::bf16;
    in.memory.activation_checkpointing = ActivationCheckpointing::full;
  }
  expect_same_bits(in);
}

INSTANTIATE_TEST_SUITE_P(
    Bf16Weights, EveryStrategyWithBf16Weights,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard),
                     testing::Values(optim::OptimizerName::adamw, optim::OptimizerName::sgd)));

TEST(Bf16Weights, GiveTheSameBitsUnderASpecATensorAxisAndSecondaryShards) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  const auto in = bf16_inputs(Strategy::full_shard, folder);
  {
    auto spec = in;
    spec.sharding.spec.emplace();
    for (const char* name : {"model.embed_tokens", "lm_head", "model.layers.*.mlp.gate_proj"})
      spec.sharding.spec->entries.push_back({name + std::string(".weight"), {{"shard"}, {}}, "t"});
    expect_same_bits(spec);
  }
  {
    auto tensor = in;
    tensor.mesh = {.tensor = 2};
    tensor.model.num_key_value_heads = 2;
    tensor.model.vocab_size = 257;
    expect_same_bits(tensor);
  }
  auto secondary = in;
  secondary.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
  secondary.mesh.ranks_per_node = 1;
  expect_same_bits(secondary);
}

/// Counts the bytes that differ between this rank's rounded masters and their copies.
std::int64_t differences(const sharding::ShardedState& state) {
  std::int64_t count = 0;
  for (std::size_t u = 0; u < state.layout().units().size(); ++u) {
    const auto masters = state.masters().shards[u].span<float>();
    const auto copy = state.weights(u).copy.span<bf16>();
    for (std::size_t i = 0; i < masters.size(); ++i)
      count += copy[i].bits != bf16(masters[i]).bits ? 1 : 0;
  }
  return count;
}

TEST(Bf16Weights, AreTheMastersRoundedAfterEveryChangeOfThem) {
  for (const auto strategy : {Strategy::full_shard, Strategy::hybrid_shard}) {
    const TemporaryFolder folder;
    auto in = bf16_inputs(strategy, folder);
    in.sharding.keep_bf16_weights = KeepBf16Weights::yes;
    const auto setup = plan::make_planned_setup(world(), in);
    comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
    train::Trainer trainer(world(), setup, mesh);
    trainer.start();
    const auto& state = trainer.state();
    EXPECT_EQ(differences(state), 0) << "initial values";
    for (int step = 1; step <= 2; ++step) trainer.train_step();
    EXPECT_EQ(differences(state), 0) << "trained";
    world().barrier();
    for (const auto& shard : state.masters().shards)
      std::ranges::fill(shard.span<float>(), 1.0F / 3.0F);
    EXPECT_NE(differences(state), 0);
    trainer.on_master_weights_loaded();
    EXPECT_EQ(differences(state), 0) << "loaded";
    world().barrier();
  }
}

/// Returns the bytes of weights on the device: gathered ones, and those in the state.
std::pair<std::int64_t, std::int64_t> weights_of(const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  const auto& meter = device::MemoryMeter::instance();
  const auto of = [&](device::MemoryUse use) {
    return meter.by_use_at_peak()[static_cast<std::size_t>(use)];
  };
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  trainer.train_step();
  std::pair<std::int64_t, std::int64_t> seen;
  trainer.train_step(
      [] {},
      [&](double) {
        seen = {of(device::MemoryUse::weights), of(device::MemoryUse::gathered_weights)};
        return 0;
      });
  EXPECT_EQ(seen.first % (setup.layout->shard_numel() * 2), 0);
  return {seen.first / setup.layout->shard_numel(), seen.second};
}

// docs/strategies.md: 2 P / S extra bytes, and no gathered units within a node.
TEST(Bf16Weights, TakeTwoBytesAParameterAndSpareGatheredUnits) {
  const TemporaryFolder folder;
  auto in = bf16_inputs(Strategy::full_shard, folder);
  for (const int ranks_per_node : {0, 1}) {
    in.mesh.ranks_per_node = ranks_per_node;
    in.sharding.keep_bf16_weights = KeepBf16Weights::no;
    const auto [cast, gathered] = weights_of(in);
    in.sharding.keep_bf16_weights = KeepBf16Weights::yes;
    const auto [kept, gathered_of_kept] = weights_of(in);
    EXPECT_EQ(cast, 4);
    EXPECT_EQ(kept, 6);
    EXPECT_GT(gathered, 0);
    const bool over_network = ranks_per_node == 1 && world().size() > 1;
    EXPECT_EQ(gathered_of_kept, over_network ? gathered : 0);
  }
}

/// Returns the resolution of `auto` on a device with `limit` bytes.
KeepBf16Weights chosen(train::Inputs in, std::int64_t limit) {
  in.sharding.keep_bf16_weights = KeepBf16Weights::automatic;
  in.memory.device_limit = limit;
  const auto setup = plan::make_planned_setup(world(), in);
  EXPECT_EQ(setup.bf16_weights.empty(),
            setup.inputs.sharding.keep_bf16_weights == KeepBf16Weights::automatic);
  return setup.inputs.sharding.keep_bf16_weights;
}

TEST(Bf16Weights, AreKeptWhereTheyLeaveATenthOfTheDevice) {
  const TemporaryFolder folder;
  auto in = bf16_inputs(Strategy::full_shard, folder);
  in.sharding.keep_bf16_weights = KeepBf16Weights::yes;
  const auto setup = plan::make_planned_setup(world(), in);
  const auto peak = world().max(plan::plan_on_this_device(setup, world().rank(), 1).peak, "peak");
  EXPECT_EQ(chosen(in, peak * 10 / 9 + 2), KeepBf16Weights::yes);
  EXPECT_EQ(chosen(in, peak * 10 / 9 - 2), KeepBf16Weights::no);
  in.sharding.strategy = Strategy::no_shard;  // keeps all units gathered
  EXPECT_EQ(chosen(in, peak), KeepBf16Weights::yes);
  in.sharding.offload = sharding::Offload::optimizer;
  EXPECT_EQ(chosen(in, peak * 2), KeepBf16Weights::automatic);
  in.sharding.offload = sharding::Offload::none;
  in.precision.parameters = DType::f32;
  EXPECT_EQ(chosen(in, peak * 2), KeepBf16Weights::automatic);
}

}  // namespace
}  // namespace llamesh::test
