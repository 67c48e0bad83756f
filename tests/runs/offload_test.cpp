#include <gtest/gtest.h>

#include "runs/small_run.hpp"

// Whole runs with the state in host memory must match the same runs on the device only.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::Offload;
using sharding::Strategy;

/// Checks that every bit equals the run without offload.
void expect_bits_of_none(train::Inputs in) {
  in.train.steps = 3;
  const auto plain = run(world(), in);
  for (const auto offload : {Offload::optimizer, Offload::all}) {
    in.sharding.offload = offload;
    const auto other = run(world(), in);
    const auto what = offload == Offload::all ? "offload: all" : "offload: optimizer";
    EXPECT_EQ(other.losses, plain.losses) << what;
    EXPECT_EQ(other.norms, plain.norms) << what;
    EXPECT_EQ(other.masters, plain.masters) << what;
    EXPECT_EQ(other.traffic, plain.traffic) << what;
  }
}

using OffloadCase = std::tuple<Strategy, DType, sharding::Wrap>;
class EveryStrategyOffloaded : public testing::TestWithParam<OffloadCase> {};

TEST_P(EveryStrategyOffloaded, GivesTheSameBits) {
  const auto [strategy, dtype, wrap] = GetParam();
  if (world().size() == 1 && strategy != Strategy::no_shard) return;  // identical
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.sharding.strategy = strategy;
  in.sharding.wrap = {wrap, 2500};
  in.sharding.prefetch = wrap == sharding::Wrap::size ? 3 : 1;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  in.precision = {.parameters = dtype, .reduce = dtype};
  if (wrap == sharding::Wrap::size)
    in.memory.activation_checkpointing = ActivationCheckpointing::full;
  expect_bits_of_none(in);
}

INSTANTIATE_TEST_SUITE_P(
    Offload, EveryStrategyOffloaded,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard),
                     testing::Values(DType::f32, DType::bf16),
                     testing::Values(sharding::Wrap::layer, sharding::Wrap::size,
                                     sharding::Wrap::none)));

TEST(Offload, GivesTheSameBitsWithOneMicroBatch) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.train.global_batch = world().size();
  expect_bits_of_none(in);
}

TEST(Offload, GivesTheSameBitsWithGradientsReducedOnce) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.sharding.reduce = sharding::Reduce::last;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  for (const auto strategy : {Strategy::full_shard, Strategy::hybrid_shard_zero2}) {
    in.sharding.strategy = strategy;
    expect_bits_of_none(in);
  }
}

TEST(ActivationOffload, GivesTheSameBits) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.train.steps = 3;
  in.train.micro_batch = 2;
  in.train.global_batch = 16;
  for (const int layers : {3, 4, 5, 6})  // with three layers none takes turns
    for (const auto checkpointing :
         {ActivationCheckpointing::none, ActivationCheckpointing::selective,
          ActivationCheckpointing::full}) {
      in.model.num_hidden_layers = layers;
      in.memory.activation_checkpointing = checkpointing;
      in.memory.full_checkpointing_layers = layers == 6 ? 2 : 0;
      in.memory.activation_offload = false;
      const auto plain = run(world(), in);
      in.memory.activation_offload = true;
      const auto other = run(world(), in);
      EXPECT_EQ(other.losses, plain.losses) << layers << " layers";
      EXPECT_EQ(other.masters, plain.masters) << layers << " layers";
    }
}

TEST(Offload, GivesTheSameBitsWithSecondaryShards) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
  in.mesh.ranks_per_node = 2;
  in.precision.parameters = DType::bf16;
  expect_bits_of_none(in);
}

// Two ranks share the kv head: gradients for k, v and the norms are partial sums.
TEST(Offload, GivesTheSameBitsBesideATensorAxis) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.sharding.strategy = Strategy::full_shard;
  in.mesh = {.tensor = 2};
  in.model.num_key_value_heads = 1;
  in.model.vocab_size = 257;
  expect_bits_of_none(in);
}

TEST(Offload, GivesTheSameBitsWhereASpecLeavesMatricesUnsharded) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.sharding.strategy = Strategy::hybrid_shard;
  in.optimizer.name = optim::OptimizerName::sgd;
  in.sharding.spec.emplace();
  in.sharding.spec->entries.push_back({"model.embed_tokens.weight", {{"shard"}, {}}, "test"});
  expect_bits_of_none(in);
}

}  // namespace
}  // namespace llamesh::test
