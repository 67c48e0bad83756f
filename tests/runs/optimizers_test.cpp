#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "device/memory_meter.hpp"
#include "runs/small_run.hpp"

// Whole runs with moments in bf16 and with Muon: every mesh against one rank, against moments in
// fp32, and with the state in host memory.

namespace llamesh::test {
namespace {

using sharding::Strategy;

train::Inputs with_bf16_moments(train::Inputs in) {
  in.optimizer.moments = DType::bf16;
  return in;
}

train::Inputs with_muon(train::Inputs in) {
  in.optimizer.name = optim::OptimizerName::muon;
  return in;
}

train::Inputs with_muon_on_experts(train::Inputs in) {
  in.model.family = "mixtral";
  in.model.vocab_size = 261;
  in.model.num_attention_heads = 4;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 10;
  in.model.num_experts = 4;
  in.model.num_experts_per_tok = 2;
  in.mesh.expert = world().size() > 1 ? 2 : 1;
  in.mesh.allow_expert_across_nodes = true;
  return with_muon(in);
}

train::Inputs with_muon_beside_frozen(train::Inputs in) {
  in.train.trained.freeze = {"model.layers.0", "*.k_proj"};
  return with_muon(in);
}

struct RunCase {
  const char* name;
  train::Inputs (*optimizer)(train::Inputs);
  Strategy strategy;
  sharding::Wrap wrap = sharding::Wrap::layer;
};

class EveryOptimizer : public testing::TestWithParam<RunCase> {};

train::Inputs inputs_of(const RunCase& c, const TemporaryFolder& folder) {
  auto in = c.optimizer(small_inputs(folder.path()));
  in.sharding.strategy = c.strategy;
  in.sharding.wrap = {c.wrap, 2500};
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  return in;
}

TEST_P(EveryOptimizer, GivesTheLossesOfOneRankOnEveryMesh) {
  const TemporaryFolder folder;
  auto in = inputs_of(GetParam(), folder);
  in.train.global_batch = 24;  // divisible by 8 and by 6
  const auto seen = run(world(), in);
  const auto alone = run_alone(in);
  EXPECT_LT(alone.losses.back(), 0.8 * alone.losses.front()) << "the run learnt nothing";
  for (std::size_t i = 0; i < seen.losses.size(); ++i)
    EXPECT_NEAR(seen.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
  EXPECT_EQ(run(world(), in).losses, seen.losses) << "two runs differ";
}

TEST_P(EveryOptimizer, GivesTheSameBitsWithTheStateOnTheHost) {
  const TemporaryFolder folder;
  auto in = inputs_of(GetParam(), folder);
  if (in.optimizer.name == optim::OptimizerName::muon) GTEST_SKIP() << "refused";
  in.train.global_batch = 24;
  in.train.steps = 3;
  const auto plain = run(world(), in);
  for (const auto offload : {sharding::Offload::optimizer, sharding::Offload::all}) {
    in.sharding.offload = offload;
    EXPECT_EQ(run(world(), in).masters, plain.masters);
  }
}

using enum Strategy;
INSTANTIATE_TEST_SUITE_P(
    Runs, EveryOptimizer,
    testing::Values(RunCase{"bf16", with_bf16_moments, full_shard},
                    RunCase{"bf16", with_bf16_moments, hybrid_shard},
                    RunCase{"bf16", with_bf16_moments, no_shard},
                    RunCase{"muon", with_muon, full_shard},
                    RunCase{"muon", with_muon, hybrid_shard}, RunCase{"muon", with_muon, no_shard},
                    RunCase{"muon", with_muon, shard_grad_op},
                    RunCase{"muon", with_muon, full_shard, sharding::Wrap::size},
                    RunCase{"muon", with_muon, full_shard, sharding::Wrap::none},
                    RunCase{"muon_on_experts", with_muon_on_experts, full_shard},
                    RunCase{"muon_beside_frozen", with_muon_beside_frozen, full_shard},
                    RunCase{"muon_beside_frozen", with_muon_beside_frozen, hybrid_shard}),
    [](const auto& c) {
      return fmt::format("{}_{}_wrap{}", c.param.name, sharding::name_of(c.param.strategy),
                         static_cast<int>(c.param.wrap));
    });

// Without stochastic rounding, an average with beta = 0.999 would stand still in bf16: its steps
// are below half a unit in the last place.
TEST(Bf16Moments, TrainLikeFp32OverHundredsOfSteps) {
  if (world().size() > 1 || test::sanitized) GTEST_SKIP() << "takes long: once is enough";
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.train.global_batch = 24;
  in.train.steps = 200;
  in.optimizer.beta2 = 0.999;
  const auto fp32 = run(world(), in);
  in.optimizer.moments = DType::bf16;
  const auto narrow = run(world(), in);
  ASSERT_LT(fp32.losses.back(), 0.5 * fp32.losses.front());
  for (std::size_t i = 0; i < fp32.losses.size(); ++i)
    ASSERT_NEAR(narrow.losses[i], fp32.losses[i], 0.03 * fp32.losses[i]) << "step " << i + 1;
}

/// Returns the bytes a parameter that this rank keeps for the optimizer after a step.
double state_bytes(const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  trainer.train_step();
  const auto use = static_cast<std::size_t>(device::MemoryUse::optimizer);
  return static_cast<double>(device::MemoryMeter::instance().by_use()[use]) /
         static_cast<double>(setup.layout->shard_numel());
}

TEST(Bf16Moments, TakeHalfTheMemory) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.train.global_batch = 24;
  in.sharding.strategy = Strategy::full_shard;
  EXPECT_EQ(state_bytes(in), 8);
  EXPECT_EQ(state_bytes(with_bf16_moments(in)), 4);
}

// 4 bytes for a hidden matrix, 8 for the rest.
TEST(Muon, KeepsOneMomentForHiddenMatrices) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.train.global_batch = 24;
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.wrap = {sharding::Wrap::layer, 2500};
  const auto table = model::parameter_table(in.model.resolved());
  double rest = 0;
  for (const auto& parameter : table.parameters)
    if (!optim::is_hidden_matrix(parameter)) rest += static_cast<double>(parameter.numel());
  const double expected = 4 + 4 * rest / static_cast<double>(table.numel());
  EXPECT_NEAR(state_bytes(with_muon(in)), expected, 0.05 * expected);
}

}  // namespace
}  // namespace llamesh::test
