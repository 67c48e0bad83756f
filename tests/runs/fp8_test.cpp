#include <gtest/gtest.h>

#include "runs/small_run.hpp"

// Runs with precision.linear: fp8. reproducible_test.cpp compares meshes that do not change the
// rounding, to the bit.

namespace llamesh::test {
namespace {

using model::LinearPrecision;
using sharding::Strategy;

train::Inputs fp8_inputs(const TemporaryFolder& folder) {
  auto in = small_inputs(folder.path());
  in.precision.linear = LinearPrecision::fp8;
  in.model.num_hidden_layers = 4;
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 264;
  in.train.global_batch = 16;
  return in;
}

/// A mesh that divides what is rounded together, or sums it in another order.
struct Axes {
  const char* name;
  const char* family;
  comm::MeshOptions mesh;
};

class Fp8Axes : public testing::TestWithParam<Axes> {};

TEST_P(Fp8Axes, TrainAsOneRank) {
  const auto& [name, family, mesh] = GetParam();
  if (world().size() == 1 || world().size() % 2 != 0) GTEST_SKIP() << "needs two ranks";
  const TemporaryFolder folder;
  auto in = fp8_inputs(folder);
  in.model.family = family;
  if (in.model.family == "qwen3_moe")
    in.model.num_experts = 4, in.model.num_experts_per_tok = 2, in.model.moe_intermediate_size = 28;
  const auto alone = run_alone(in);
  in.mesh = mesh;
  in.sharding.strategy = world().size() == 2 ? Strategy::no_shard : Strategy::full_shard;
  const auto seen = run(world(), in);
  // A scale that is half as large rounds the same, but for the smallest numbers.
  for (std::size_t i = 0; i < seen.losses.size(); ++i)
    EXPECT_NEAR(seen.losses[i], alone.losses[i], 1e-3 * alone.losses[i]) << "step " << i + 1;
}

INSTANTIATE_TEST_SUITE_P(Axes, Fp8Axes,
                         testing::Values(Axes{"tensor", "llama", {.tensor = 2}},
                                         Axes{"context", "llama", {.context = 2}},
                                         Axes{"pipeline", "llama", {.pipeline = 2}},
                                         Axes{"expert", "qwen3_moe", {.expert = 2}},
                                         Axes{"tensor_of_experts", "qwen3_moe", {.tensor = 2}}),
                         [](const auto& axes) { return axes.param.name; });

/// What it is for: nearly the same losses, but by other numbers.
TEST(Fp8, TrainsNearlyAsInTheParametersType) {
  const TemporaryFolder folder;
  for (const auto dtype : {DType::f32, DType::bf16}) {
    auto in = fp8_inputs(folder);
    in.precision.parameters = dtype;
    const auto fp8 = run_alone(in);
    in.precision.linear = LinearPrecision::same;
    const auto same = run_alone(in);
    EXPECT_LT(fp8.losses.back(), 0.8 * fp8.losses.front());
    EXPECT_NEAR(fp8.losses.back(), same.losses.back(), 0.01 * same.losses.back());
    EXPECT_NE(fp8.losses, same.losses);
  }
}

/// Without FP8 units nothing is left to emulate: the names differ, the numbers do not.
TEST(Fp8, EmulatedHasTheSameBits) {
  const TemporaryFolder folder;
  auto in = fp8_inputs(folder);
  const auto fp8 = run_alone(in);
  in.precision.linear = LinearPrecision::fp8_emulated;
  EXPECT_EQ(run_alone(in).losses, fp8.losses);
}

TEST(Fp8, RecomputedLayersHaveTheSameBits) {
  const TemporaryFolder folder;
  auto in = fp8_inputs(folder);
  const auto kept = run_alone(in);
  in.memory.activation_checkpointing = model::ActivationCheckpointing::full;
  EXPECT_EQ(run_alone(in).losses, kept.losses);
}

/// Returns a run's losses, and the bytes that a rank sends along `shard` in its last step.
std::pair<std::vector<double>, std::int64_t> losses_and_traffic(const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  std::vector<double> losses;
  std::int64_t bytes = 0;
  while (trainer.step() < in.train.steps) {
    const auto record = trainer.train_step();
    losses.push_back(record.loss);
    bytes = record.traffic.at("shard");
  }
  return {losses, bytes};
}

/// The forward pass has the same bits. Later losses differ by small numbers in input gradients.
TEST(Fp8, GathersWhatItMultipliesBy) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.precision = {.parameters = DType::bf16, .linear = LinearPrecision::fp8};
  in.model.vocab_size = 264;
  in.model.hidden_size = 96;
  in.model.intermediate_size = 256;
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.reduce = sharding::Reduce::last;
  in.train.global_batch = 8 * world().size();
  in.train.steps = 8;
  for (const int ranks_per_node : {1, world().size()})
    for (const auto offload : {sharding::Offload::none, sharding::Offload::all}) {
      in.mesh.ranks_per_node = ranks_per_node;
      in.sharding.offload = offload;
      in.sharding.gather = sharding::GatherDType::automatic;
      in.sharding.gather_within_node = false;
      const auto [plain, bytes] = losses_and_traffic(in);
      in.sharding.gather = sharding::GatherDType::fp8;
      in.sharding.gather_within_node = true;
      const auto [losses, fewer] = losses_and_traffic(in);
      EXPECT_EQ(losses.front(), plain.front());
      for (std::size_t i = 0; i < plain.size(); ++i)
        EXPECT_NEAR(losses[i], plain[i], 1e-2 * plain[i]) << "step " << i + 1;
      // Gradients are reduced once. Within a node, ranks read each other's memory.
      EXPECT_LT(fewer, ranks_per_node == 1 ? 65 * bytes / 100 : bytes + bytes / 100);
    }
}

TEST(Fp8, GathersFrozenWeightsAndSecondaryShards) {
  if (world().size() != 4) GTEST_SKIP() << "needs four ranks";
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.precision.linear = LinearPrecision::fp8;
  in.model.lora = model::Lora{.rank = 4, .alpha = 16};
  in.sharding.strategy = Strategy::full_shard;
  in.mesh.ranks_per_node = 2;
  const auto plain = run(world(), in);
  in.sharding.gather = sharding::GatherDType::fp8;
  const auto fp8 = run(world(), in);
  EXPECT_EQ(fp8.losses.front(), plain.losses.front());
  EXPECT_NEAR(fp8.losses.back(), plain.losses.back(), 1e-3 * plain.losses.back());
  in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
  EXPECT_EQ(run(world(), in).losses, fp8.losses);
}

TEST(Fp8, GathersNothingInFp8ThatItDoesNotMultiplyInFp8) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.train.global_batch = world().size();
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.gather = sharding::GatherDType::fp8;
  EXPECT_EQ(error_of([&] { train::plan_setup(in, comm::discover_topology(world(), 0)); }),
            "sharding.gather is fp8, which sends what linear layers in FP8 multiply by, but "
            "precision.linear is same; set that to fp8, or sharding.gather to int8");
}

TEST(Fp8, TrainsAdapters) {
  const TemporaryFolder folder;
  auto in = fp8_inputs(folder);
  in.model.lora = model::Lora{.rank = 4, .alpha = 16};
  const auto fp8 = run_alone(in);
  EXPECT_LT(fp8.losses.back(), fp8.losses.front());
  in.precision.linear = LinearPrecision::same;
  const auto same = run_alone(in);
  EXPECT_NEAR(fp8.losses.back(), same.losses.back(), 0.01 * same.losses.back());
  EXPECT_NE(fp8.losses, same.losses);
}

}  // namespace
}  // namespace llamesh::test
