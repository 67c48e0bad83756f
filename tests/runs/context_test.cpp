#include <gtest/gtest.h>

#include <vector>

#include "runs/small_run.hpp"
#include "runs/whole_run.hpp"

// Sequences divided among the ranks of a context axis, compared with one rank that has them whole.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::ResidualLayout;
using sharding::Strategy;
using enum ActivationCheckpointing;
using enum Strategy;

struct ContextCase {
  int replicate = 1, shard = 1, expert = 1, context = 2, tensor = 1;
  Strategy strategy = full_shard;
  ActivationCheckpointing checkpointing = none;
  ResidualLayout residual = ResidualLayout::sequence;
  sharding::Wrap wrap = sharding::Wrap::layer;
  sharding::Offload offload = sharding::Offload::none;
  int reshard_to = -1;
  bool activation_offload = false;
  int ranks() const { return replicate * shard * expert * context * tensor; }
};

/// Returns inputs for sequences of 48 tokens, which 2, 3, 4 and 8 ranks divide.
train::Inputs context_inputs(const ContextCase& c, const std::filesystem::path& folder) {
  auto in = small_inputs(folder);
  in.data.sequence_length = 48;
  in.train.steps = 10;
  in.train.global_batch = 8;
  if (c.expert > 1) {
    in.model.family = "mixtral";
    in.model.num_experts = 8;
    in.model.num_experts_per_tok = 3;
  }
  if (c.expert > 1 || c.tensor > 1) {
    in.model.vocab_size = 264;
    in.model.num_attention_heads = 4;
    in.model.num_key_value_heads = 2;
    in.model.head_dim = 10;
  }
  in.mesh = {.replicate = c.replicate,
             .shard = c.shard,
             .expert = c.expert,
             .context = c.context,
             .tensor = c.tensor};
  in.sharding.strategy = c.strategy;
  in.sharding.wrap = {c.wrap, 2500};
  in.sharding.offload = c.offload;
  in.sharding.reshard_after_forward = sharding::ReshardAfterForward{c.reshard_to};
  in.memory.activation_checkpointing = c.checkpointing;
  in.memory.activation_offload = c.activation_offload;
  in.tensor.residual = c.residual;
  return in;
}

void expect_near_one_rank(const Outcome& seen, train::Inputs reference) {
  reference.sharding.reshard_after_forward = sharding::ReshardAfterForward::by_strategy;
  const auto alone = run_alone(reference);
  EXPECT_LT(alone.losses.back(), 0.9 * alone.losses.front()) << "the run learnt nothing";
  ASSERT_EQ(seen.losses.size(), alone.losses.size());
  for (std::size_t i = 0; i < seen.losses.size(); ++i) {
    EXPECT_NEAR(seen.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(seen.norms[i], alone.norms[i], 1e-3 * alone.norms[i]) << "step " << i + 1;
  }
}

class ContextMesh : public testing::TestWithParam<ContextCase> {};

TEST_P(ContextMesh, GivesTheLossesOfOneRankAndTheSameBitsTwice) {
  const auto& c = GetParam();
  if (c.ranks() != world().size()) return;
  const TemporaryFolder folder;
  const auto in = context_inputs(c, folder.path());
  const auto seen = run(world(), in);
  expect_near_one_rank(seen, in);
  EXPECT_EQ(run(world(), in).masters, seen.masters);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ContextMesh,
    testing::Values(
        ContextCase{}, ContextCase{.strategy = no_shard, .checkpointing = full},
        ContextCase{.strategy = shard_grad_op, .checkpointing = selective},
        ContextCase{.context = 3}, ContextCase{.context = 3, .checkpointing = full},
        ContextCase{.context = 4, .checkpointing = selective}, ContextCase{.shard = 2},
        ContextCase{.replicate = 2, .strategy = hybrid_shard, .checkpointing = selective},
        ContextCase{.replicate = 2, .strategy = no_shard}, ContextCase{.tensor = 2},
        ContextCase{.tensor = 2, .checkpointing = full, .residual = ResidualLayout::whole},
        ContextCase{.expert = 2, .checkpointing = selective},
        ContextCase{.shard = 2, .strategy = hybrid_shard_zero2, .wrap = sharding::Wrap::none},
        ContextCase{.shard = 2, .checkpointing = full, .wrap = sharding::Wrap::size},
        ContextCase{.shard = 2, .offload = sharding::Offload::all, .activation_offload = true},
        ContextCase{.context = 4,
                    .checkpointing = full,
                    .offload = sharding::Offload::optimizer,
                    .activation_offload = true},
        ContextCase{.context = 8}, ContextCase{.shard = 4, .reshard_to = 2},
        ContextCase{.replicate = 2, .shard = 2, .strategy = hybrid_shard},
        ContextCase{.shard = 2, .tensor = 2, .residual = ResidualLayout::hidden},
        ContextCase{.shard = 2, .expert = 2},
        ContextCase{.expert = 2, .tensor = 2, .checkpointing = full}));

// Documents end within and across pieces.
TEST(ContextAxis, TakesDocumentsAndWindows) {
  if (world().size() > 4) return;
  const TemporaryFolder folder;
  auto in = context_inputs({.context = world().size()}, folder.path());
  in.data.document_mask = true;
  expect_near_one_rank(run(world(), in), in);
  in.data.document_mask = false;
  in.model.family = "mistral";
  in.model.sliding_window = 11;
  expect_near_one_rank(run(world(), in), in);
}

TEST(ContextAxis, TakesBf16) {
  if (world().size() != 2) return;
  const TemporaryFolder folder;
  auto in = context_inputs({}, folder.path());
  in.precision.parameters = DType::bf16;
  const auto rounded = run(world(), in);
  EXPECT_EQ(run(world(), in).masters, rounded.masters);
  in.precision.parameters = DType::f32;
  const auto alone = run_alone(in);
  for (std::size_t i = 0; i < alone.losses.size(); ++i)
    EXPECT_NEAR(rounded.losses[i], alone.losses[i], 0.03 * alone.losses[i]) << "step " << i + 1;
}

class ContextTraffic : public testing::TestWithParam<std::tuple<ActivationCheckpointing, DType>> {};

// docs/strategies.md. `shard` has 2 ranks, so that the context axis moves keys and values only.
TEST_P(ContextTraffic, IsExactlyThatOfTheFormula) {
  if (world().size() != 4) return;
  const auto [checkpointing, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = context_inputs({.shard = 2, .checkpointing = checkpointing}, folder.path());
  in.precision.parameters = dtype;
  in.train.steps = 2;
  const std::int64_t c = 2;
  const auto config = in.model.resolved();
  const auto layers = config.num_hidden_layers;
  const auto tokens = in.train.micro_batch * in.data.sequence_length / c;
  const auto row = 2 * config.num_key_value_heads * config.head_dim * size_of(dtype);
  const auto setup = plan::make_planned_setup(world(), in);
  EXPECT_EQ(run(world(), in).traffic.at("context"),
            setup.micro_batches * layers * 3 * (c - 1) * tokens * row);
}

INSTANTIATE_TEST_SUITE_P(Traffic, ContextTraffic,
                         testing::Combine(testing::Values(none, selective, full),
                                          testing::Values(DType::f32, DType::bf16)));

// All ranks that read other tokens share the state.
TEST(ContextAxis, DividesTheStateAmongAllRanks) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  const auto setup = plan::make_planned_setup(world(), context_inputs({.shard = 2}, folder.path()));
  for (const auto& unit : setup.layout->units()) EXPECT_EQ(unit.shards, 4) << unit.name;
}

// Evaluation counts every token once.
TEST(ContextAxis, EvaluatesLikeOneRank) {
  if (world().size() > 4) return;
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.data.sequence_length = 48;
  in.data.validation = in.data.train;
  in.evaluate.every_steps = 12;
  in.sharding.strategy = full_shard;
  const auto validated = [](const comm::Communicator& ranks, const train::Inputs& inputs) {
    const auto setup = plan::make_planned_setup(ranks, inputs);
    comm::DeviceMesh mesh(ranks, setup.topology, setup.mesh);
    train::Trainer trainer(ranks, setup, mesh);
    trainer.start();
    return trainer.evaluate().loss;
  };
  auto divided = in;
  divided.mesh.context = world().size();
  const double seen = validated(world(), divided);
  in.sharding.strategy = no_shard;
  EXPECT_NEAR(seen, validated(world().split(world().rank(), 0), in), 1e-5 * seen);
}

TEST(ContextAxis, RefusesSequencesThatDoNotDivide) {
  const TemporaryFolder folder;
  auto in = context_inputs({.context = 4}, folder.path());
  in.data.sequence_length = 50;
  try {
    train::plan_setup(in, comm::planned_topology(4, 4, 0));
    ADD_FAILURE() << "50 tokens in 8 pieces";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_STREQ(error.what(),
                 "data.sequence_length is 50, which 4 context ranks cannot divide into 8 equal "
                 "pieces; use 48 or 56");
  }
}

// Weights over both axes, over one of them, and whole on every rank.
TEST(ContextAxis, TakesASpec) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = context_inputs({.shard = 2}, folder.path());
  in.sharding.spec.emplace().entries = {
      {"model.embed_tokens.weight", {{"shard"}, {}}, "test"},
      {"model.layers.*.mlp.up_proj.weight", {{"shard", "context"}, {}}, "test"},
      {"model.layers.*.mlp.down_proj.weight", {{"context"}, {}}, "test"},
      {"model.layers.*", {{"shard"}, {"context"}, {}}, "test"}};
  const auto seen = run(world(), in);
  in.sharding.spec.reset();
  expect_near_one_rank(seen, in);
}

// A run with a context axis is saved, and continues on another mesh with the same data.
TEST(ContextAxis, ACheckpointGoesToAnyOtherMesh) {
  if (world().size() > 4) return;
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  auto other = in.mesh;
  other.context = 1;
  in.mesh.context = world().size();
  in.sharding.strategy = full_shard;
  expect_continues_on(other, in);
}

}  // namespace
}  // namespace llamesh::test
