#include <gtest/gtest.h>

#include <vector>

#include "runs/small_run.hpp"
#include "runs/whole_run.hpp"

// Mixtures of experts on meshes with an expert axis, compared with one rank that has all experts.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::ResidualLayout;
using sharding::Strategy;
using enum ActivationCheckpointing;

/// Gives a small run a mixture of 8 experts.
train::Inputs with_experts(train::Inputs in) {
  in.model.family = "mixtral";
  in.model.vocab_size = 264;
  in.model.num_attention_heads = 4;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 10;
  in.model.num_experts = 8;
  in.model.num_experts_per_tok = 3;
  in.train.global_batch = 8;
  return in;
}

struct ExpertCase {
  int replicate, shard, expert, tensor = 1;
  Strategy strategy = Strategy::full_shard;
  ActivationCheckpointing checkpointing = none;
  ResidualLayout residual = ResidualLayout::sequence;
  sharding::Wrap wrap = sharding::Wrap::layer;
  sharding::Offload offload = sharding::Offload::none;
  int reshard_to = -1;
  bool activation_offload = false;
};

train::Inputs expert_inputs(const ExpertCase& c, const std::filesystem::path& folder) {
  auto in = with_experts(small_inputs(folder));
  in.train.steps = 10;
  in.mesh = {.replicate = c.replicate, .shard = c.shard, .expert = c.expert, .tensor = c.tensor};
  in.sharding.strategy = c.strategy;
  in.sharding.wrap = {c.wrap, 2500};
  in.sharding.offload = c.offload;
  in.sharding.reshard_after_forward = sharding::ReshardAfterForward{c.reshard_to};
  in.memory.activation_checkpointing = c.checkpointing;
  in.memory.activation_offload = c.activation_offload;
  in.tensor.residual = c.residual;
  return in;
}

void expect_near_one_rank(const Outcome& seen, const Outcome& expected) {
  ASSERT_EQ(seen.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < seen.losses.size(); ++i) {
    EXPECT_NEAR(seen.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(seen.norms[i], expected.norms[i], 1e-3 * expected.norms[i]) << "step " << i + 1;
  }
}

class ExpertMesh : public testing::TestWithParam<ExpertCase> {};

TEST_P(ExpertMesh, GivesTheLossesOfOneRankAndTheSameBitsTwice) {
  const auto& c = GetParam();
  if (c.replicate * c.shard * c.expert * c.tensor != world().size()) return;
  const TemporaryFolder folder;
  const auto in = expert_inputs(c, folder.path());
  const auto seen = run(world(), in);
  auto reference = in;
  reference.sharding.reshard_after_forward = sharding::ReshardAfterForward::by_strategy;
  const auto alone = run_alone(reference);
  EXPECT_LT(alone.losses.back(), 0.9 * alone.losses.front()) << "the run learnt nothing";
  expect_near_one_rank(seen, alone);
  EXPECT_EQ(run(world(), in).masters, seen.masters);
}

using enum Strategy;
INSTANTIATE_TEST_SUITE_P(
    Meshes, ExpertMesh,
    testing::Values(
        ExpertCase{1, 1, 2}, ExpertCase{1, 1, 2, 1, no_shard, full}, ExpertCase{1, 2, 2},
        ExpertCase{1, 1, 4, 1, full_shard, selective}, ExpertCase{2, 1, 2, 1, no_shard},
        ExpertCase{2, 1, 2, 1, hybrid_shard, selective},
        ExpertCase{1, 2, 2, 1, shard_grad_op, full, ResidualLayout::sequence, sharding::Wrap::size},
        ExpertCase{1, 2, 2, 1, hybrid_shard_zero2, none, ResidualLayout::sequence,
                   sharding::Wrap::none},
        ExpertCase{1, 1, 2, 2}, ExpertCase{1, 1, 2, 2, full_shard, full, ResidualLayout::whole},
        ExpertCase{1, 2, 2, 1, full_shard, full, ResidualLayout::sequence, sharding::Wrap::layer,
                   sharding::Offload::all, -1, true},
        ExpertCase{1, 2, 2, 1, full_shard, selective, ResidualLayout::sequence,
                   sharding::Wrap::layer, sharding::Offload::optimizer},
        ExpertCase{1, 2, 2, 2}, ExpertCase{2, 2, 2, 1, hybrid_shard}, ExpertCase{1, 1, 8},
        ExpertCase{2, 1, 2, 2, hybrid_shard, selective, ResidualLayout::hidden},
        ExpertCase{1, 4, 2, 1, full_shard, none, ResidualLayout::sequence, sharding::Wrap::layer,
                   sharding::Offload::none, 2}));

// Documents end within sequences, and bf16 has its own dispatch.
TEST(ExpertAxis, TakesDocumentsAndBf16) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  auto in = expert_inputs(ExpertCase{1, 2, 2}, folder.path());
  in.data.document_mask = true;
  const auto alone = run_alone(in);
  expect_near_one_rank(run(world(), in), alone);
  in.precision.parameters = DType::bf16;
  const auto rounded = run(world(), in);
  EXPECT_EQ(run(world(), in).masters, rounded.masters);
  for (std::size_t i = 0; i < alone.losses.size(); ++i)
    EXPECT_NEAR(rounded.losses[i], alone.losses[i], 0.03 * alone.losses[i]) << "step " << i + 1;
}

class ExpertTraffic : public testing::TestWithParam<std::tuple<ActivationCheckpointing, DType>> {};

// docs/strategies.md. Every token takes all experts, so that all ranks exchange equally.
TEST_P(ExpertTraffic, IsExactlyThatOfTheFormulas) {
  if (world().size() != 4) return;
  const auto [checkpointing, dtype] = GetParam();
  const TemporaryFolder folder;
  auto in = expert_inputs({1, 2, 2, 1, full_shard, checkpointing}, folder.path());
  in.model.num_experts_per_tok = 8;
  in.precision.parameters = dtype;
  in.train.steps = 2;
  const std::int64_t e = 2;
  const auto layers = in.model.num_hidden_layers;
  const auto tokens = in.train.micro_batch * in.data.sequence_length;
  const auto rows = tokens * in.model.num_experts_per_tok * (e - 1) / e;
  const auto row = in.model.hidden_size * size_of(dtype);
  const auto counts = 4 * (in.model.num_experts + 1) * (e - 1);
  const auto recomputed = checkpointing == full ? layers - 1 : 0;
  const auto setup = plan::make_planned_setup(world(), in);
  EXPECT_EQ(run(world(), in).traffic.at("expert"),
            setup.micro_batches *
                (layers * (rows * (4 * row + 8) + counts) + recomputed * (rows * row + counts)));
}

INSTANTIATE_TEST_SUITE_P(Traffic, ExpertTraffic,
                         testing::Combine(testing::Values(none, selective, full),
                                          testing::Values(DType::f32, DType::bf16)));

// Dense parameters are sharded over all data ranks, experts over what their axis leaves.
TEST(ExpertAxis, DividesTheStateAmongAllRanks) {
  if (world().size() != 4) return;
  const TemporaryFolder folder;
  const auto in = expert_inputs({1, 2, 2}, folder.path());
  const auto setup = plan::make_planned_setup(world(), in);
  const auto whole = setup.table->numel();
  EXPECT_NEAR(static_cast<double>(setup.layout->shard_numel()), static_cast<double>(whole) / 4,
              0.01 * static_cast<double>(whole));
  for (const auto& unit : setup.layout->units()) {
    const bool stacked = model::is_stacked((*setup.table)[unit.parameters.front()].role);
    EXPECT_EQ(unit.shards, stacked ? 2 : 4) << unit.name;
  }
}

// A run with an expert axis is saved, and continues on another mesh.
TEST(ExpertAxis, ACheckpointGoesToAnyOtherMesh) {
  const SharedFolder folder;
  auto in = with_experts(inputs_in(folder.path()));
  auto other = in.mesh;
  other.expert = 1;
  in.mesh.expert = world().size();
  in.sharding.strategy = full_shard;
  expect_continues_on(other, in);
}

}  // namespace
}  // namespace llamesh::test
