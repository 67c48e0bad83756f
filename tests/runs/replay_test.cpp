#include <gtest/gtest.h>

#include <cstdlib>

#include "runs/small_run.hpp"

// Steps that compute their first micro-batch twice must give the bits of those that do not.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::Offload;
using sharding::Strategy;

/// Checks that a run has the same bits if it repeats micro-batches in steps 2 and 4 of 5.
void expect_same_bits_with_replay(train::Inputs in, const std::string& what) {
  in.train.steps = 5;
  const auto plain = run(world(), in);
  in.debug.replay_every = 2;
  const auto replayed = run(world(), in);
  EXPECT_EQ(replayed.losses, plain.losses) << what;
  EXPECT_EQ(replayed.norms, plain.norms) << what;
  EXPECT_EQ(replayed.masters, plain.masters) << what;
}

/// Returns inputs with `micro_batches` per step on as many nodes as possible.
train::Inputs replay_inputs(const TemporaryFolder& folder, int micro_batches) {
  auto in = small_inputs(folder.path());
  in.train.global_batch = std::int64_t{world().size()} * micro_batches;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  return in;
}

class EveryStrategyReplayed : public testing::TestWithParam<std::tuple<Strategy, int>> {};

TEST_P(EveryStrategyReplayed, GivesTheSameBits) {
  const auto [strategy, micro_batches] = GetParam();
  const TemporaryFolder folder;
  auto in = replay_inputs(folder, micro_batches);
  in.sharding.strategy = strategy;
  expect_same_bits_with_replay(in, "fp32");
  in.precision = {.parameters = DType::bf16, .reduce = DType::bf16};
  for (const auto kept : {sharding::KeepBf16Weights::no, sharding::KeepBf16Weights::yes}) {
    in.sharding.keep_bf16_weights = kept;
    expect_same_bits_with_replay(in, "bf16");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Replay, EveryStrategyReplayed,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard,
                                     Strategy::hybrid_shard_zero2),
                     testing::Values(1, 3)));

TEST(Replay, GivesTheSameBitsWithStateOrActivationsOnTheHost) {
  const TemporaryFolder folder;
  for (const auto strategy : {Strategy::full_shard, Strategy::no_shard})
    for (const auto offload : {Offload::optimizer, Offload::all})
      for (const int micro_batches : {1, 2}) {
        auto in = replay_inputs(folder, micro_batches);
        in.sharding.strategy = strategy;
        in.sharding.offload = offload;
        in.memory.activation_offload = micro_batches == 2;
        expect_same_bits_with_replay(in, "offload");
      }
}

TEST(Replay, GivesTheSameBitsWithEveryCheckpointingModeAndUnitSize) {
  const TemporaryFolder folder;
  for (const auto checkpointing :
       {ActivationCheckpointing::selective, ActivationCheckpointing::full})
    for (const auto wrap : {sharding::Wrap::size, sharding::Wrap::none}) {
      auto in = replay_inputs(folder, 2);
      in.sharding.wrap = {wrap, 2500};
      in.sharding.prefetch = 3;
      in.sharding.reshard_after_forward = sharding::ReshardAfterForward{-1};
      if (world().size() == 4) in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
      in.memory.activation_checkpointing = checkpointing;
      expect_same_bits_with_replay(in, "checkpointing");
    }
}

TEST(Replay, GivesTheSameBitsIfUnitsAreFrozen) {
  const TemporaryFolder folder;
  auto in = replay_inputs(folder, 2);
  in.train.trained.freeze = {"model.embed_tokens", "model.layers.0"};
  expect_same_bits_with_replay(in, "frozen");
  in.train.trained.freeze.clear();
  in.model.lora = model::Lora{.rank = 3, .alpha = 7, .rslora = true};
  expect_same_bits_with_replay(in, "LoRA");
}

train::Inputs replayed_experts(const TemporaryFolder& folder) {
  auto in = replay_inputs(folder, 2);
  in.model.family = "mixtral";
  in.model.vocab_size = 264;
  in.model.num_attention_heads = 4;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 10;
  in.model.num_experts = 8;
  in.model.num_experts_per_tok = 3;
  in.model.output_router_logits = true;
  in.model.router_aux_loss_coef = 0.01;
  in.model.router_z_loss_coef = 0.001;
  return in;
}

TEST(Replay, GivesTheSameBitsWithExperts) {
  const TemporaryFolder folder;
  auto in = replayed_experts(folder);
  expect_same_bits_with_replay(in, "no expert axis");
  if (world().size() == 1) return;
  in.mesh = {.expert = 2};
  expect_same_bits_with_replay(in, "expert axis");
}

TEST(Replay, GivesTheSameBitsAlongTensorAndContext) {
  if (world().size() == 1) return;
  const TemporaryFolder folder;
  auto in = replay_inputs(folder, 2);
  in.model.num_attention_heads = in.model.num_key_value_heads = 6;
  in.model.vocab_size = 257;
  in.mesh = {.tensor = 2};
  expect_same_bits_with_replay(in, "tensor");
  in.mesh = {.context = 2};
  expect_same_bits_with_replay(in, "context");
}

/// Released weights and unwritten gradients are NaN here, so a use of either would show.
TEST(Replay, GivesTheSameBitsIfReleasedMemoryIsPoisoned) {
  const TemporaryFolder folder;
  auto in = replay_inputs(folder, 2);
  setenv("LLAMESH_POISON", "1", 1);
  expect_same_bits_with_replay(in, "poison");
  unsetenv("LLAMESH_POISON");
}

/// Routers' choices must be counted once, and the planned memory must suffice.
TEST(Replay, ChangesNoOtherMeasurement) {
  const TemporaryFolder folder;
  auto in = replayed_experts(folder);
  in.train.steps = 3;
  const auto records_of = [&](std::int64_t every) {
    in.debug.replay_every = every;
    const train::Setup setup = plan::make_planned_setup(world(), in);
    comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
    train::Trainer trainer(world(), setup, mesh);
    trainer.start();
    std::vector<train::StepRecord> records;
    while (trainer.step() < in.train.steps) records.push_back(trainer.train_step());
    return records;
  };
  const auto plain = records_of(0), replayed = records_of(1);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(replayed[i].experts->all, plain[i].experts->all);
    EXPECT_EQ(replayed[i].experts->z_loss, plain[i].experts->z_loss);
    EXPECT_EQ(replayed[i].tokens, plain[i].tokens);
    EXPECT_EQ(replayed[i].peak, plain[i].peak);
    EXPECT_EQ(replayed[i].allocated_after_step, plain[i].allocated_after_step);
  }
}

}  // namespace
}  // namespace llamesh::test
