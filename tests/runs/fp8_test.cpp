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
