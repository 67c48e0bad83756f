#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "plan/step_plan.hpp"
#include "runs/whole_run.hpp"

// Sigmoid routers, whose biases balance the experts without a loss: every mesh moves them alike.

namespace llamesh::test {
namespace {

using sharding::Strategy;

constexpr double rate = 0.01;

train::Inputs inputs_of(const std::filesystem::path& folder, const std::string& family) {
  auto in = inputs_in(folder);
  auto& m = in.model;
  m.family = family;
  m.num_hidden_layers = 3;
  m.num_key_value_heads = 2;
  m.vocab_size = 258;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.router_bias_update_rate = rate;
  if (family == "glm4_moe") {
    m.moe_intermediate_size = 30;
    m.shared_expert_intermediate_size = 60;
    m.first_k_dense_replace = 1;
    m.n_group = 4;
    m.topk_group = 2;
    m.routed_scaling_factor = 1.5;
  }
  in.train.steps = 8;
  return in;
}

struct Seen {
  std::vector<train::StepRecord> records;
  std::vector<float> biases;  ///< of all layers after the last step, from this rank's shards
};

Seen seen_by(const comm::Communicator& ranks, const train::Inputs& in) {
  const train::Setup setup = plan::make_planned_setup(ranks, in);
  comm::DeviceMesh mesh(ranks, setup.topology, setup.mesh);
  train::Trainer trainer(ranks, setup, mesh);
  trainer.start();
  Seen seen;
  while (trainer.step() < in.train.steps) seen.records.push_back(trainer.train_step());
  const auto& state = trainer.state();
  const auto& layout = state.layout();
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (!layout.units()[u].fp32) continue;
    for (const auto& piece : layout.pieces(u, state.rank())) {
      std::vector<float> values(static_cast<std::size_t>(piece.count));
      sharding::download_values(state.memory(), values, state.masters().of(u, piece));
      seen.biases.insert(seen.biases.end(), values.begin(), values.end());
    }
  }
  return seen;
}

Seen seen_alone(train::Inputs in) {
  in.mesh = {};
  in.sharding = {};
  in.sharding.strategy = Strategy::no_shard;
  in.train.micro_batch = in.train.global_batch;
  in.run.folder += "-alone";
  return seen_by(world().split(world().rank(), 0), in);
}

/// The biases move by the rate in every step. Where an expert's count differs by a token on another
/// mesh, one may have moved the other way.
void expect_alike(const Seen& seen, const Seen& alone) {
  ASSERT_EQ(seen.records.size(), alone.records.size());
  for (std::size_t i = 0; i < seen.records.size(); ++i) {
    EXPECT_NEAR(seen.records[i].loss, alone.records[i].loss, 2e-4) << "step " << i + 1;
    EXPECT_NEAR(seen.records[i].experts->all.max_load, alone.records[i].experts->all.max_load,
                0.05);
  }
  ASSERT_EQ(seen.biases.size(), alone.biases.size());
  int moved = 0, differing = 0;
  for (std::size_t i = 0; i < seen.biases.size(); ++i) {
    const double steps = seen.biases[i] / rate;
    EXPECT_NEAR(steps, std::round(steps), 1e-3);
    moved += std::abs(steps) > 0.5 ? 1 : 0;
    differing += std::abs(seen.biases[i] - alone.biases[i]) > rate / 2 ? 1 : 0;
  }
  EXPECT_GT(moved, static_cast<int>(seen.biases.size() / 2));
  EXPECT_LE(differing, static_cast<int>(seen.biases.size() / 6));
}

class SelectionBias : public testing::TestWithParam<const char*> {
 protected:
  train::Inputs inputs() const { return inputs_of(folder_.path(), GetParam()); }

 private:
  const SharedFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Families, SelectionBias, testing::Values("glm4_moe", "minimax_m2"),
                         [](const auto& one) { return std::string(one.param); });

// First, before other runs have made the kernels' scratch memory grow.
TEST_P(SelectionBias, TakesThePlannedTrafficAndMemory) {
  auto in = inputs();
  in.train.micro_batch = in.train.global_batch / world().size();
  const auto seen = seen_by(world(), in).records.back();
  const auto setup = plan::make_planned_setup(world(), in);
  EXPECT_EQ(seen.traffic, plan::plan_on_this_device(setup, world().rank(), 1).traffic);
  EXPECT_NEAR(static_cast<double>(seen.peak), static_cast<double>(seen.predicted_peak), 1e5);
}

TEST_P(SelectionBias, MovesAlikeOnEveryMesh) {
  auto in = inputs();
  in.train.steps = 3;  // after an odd number no bias is 0, and few tokens choose otherwise yet
  const auto alone = seen_alone(in);
  const auto ranks = world().size();
  in.train.micro_batch = in.train.global_batch / ranks;
  for (const auto strategy : {Strategy::full_shard, Strategy::hybrid_shard, Strategy::no_shard}) {
    SCOPED_TRACE(sharding::name_of(strategy));
    in.sharding.strategy = strategy;
    expect_alike(seen_by(world(), in), alone);
  }
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.offload = sharding::Offload::all;
  in.memory.activation_checkpointing = model::ActivationCheckpointing::full;
  expect_alike(seen_by(world(), in), alone);
  if (ranks % 4 != 0) return;
  in.sharding = {};
  in.train.micro_batch = in.train.global_batch / (ranks / 2);
  in.mesh = {.replicate = 1, .shard = ranks / 4, .expert = 2, .tensor = 2};
  expect_alike(seen_by(world(), in), alone);
}

/// Biases are fp32 beside bf16 weights: the rate is far below bf16's digits at 1.
/// By the outer optimizer's rate and momentum they would move by other amounts.
TEST_P(SelectionBias, IsTheMeanOfReplicasThatTrainApart) {
  if (world().size() % 2 != 0) return;
  auto in = inputs();
  in.sharding.strategy = Strategy::hybrid_shard;
  in.mesh.replicate = 2;
  in.optimizer.outer.every_steps = 1;
  const auto biases = seen_by(world(), in).biases;
  ASSERT_FALSE(biases.empty());
  EXPECT_TRUE(std::ranges::any_of(biases, [](float bias) { return bias != 0; }));
  for (const float bias : biases) {
    const double halves = bias / (rate / 2);
    EXPECT_NEAR(halves, std::round(halves), 1e-3);
  }
}

TEST_P(SelectionBias, IsNotRoundedToBf16) {
  auto in = inputs();
  in.precision.parameters = DType::bf16;
  in.model.router_bias_update_rate = 1e-5;
  in.train.micro_batch = in.train.global_batch / world().size();
  const auto seen = seen_by(world(), in);
  for (const float bias : seen.biases)
    EXPECT_NEAR(bias / 1e-5, std::round(bias / 1e-5), 1e-3) << bias;
}

/// The mean over the last 20 steps: in a single one, a bias may overshoot.
double entropy_of(const Seen& seen) {
  double sum = 0;
  for (std::size_t i = seen.records.size() - 20; i < seen.records.size(); ++i)
    sum += seen.records[i].experts->all.entropy;
  return sum / 20;
}

TEST_P(SelectionBias, EvensTheLoad) {
  auto in = inputs();
  in.train.steps = 30;
  in.train.micro_batch = in.train.global_batch / world().size();
  const auto with = seen_by(world(), in);
  in.model.router_bias_update_rate = 0;
  const auto without = seen_by(world(), in);
  EXPECT_EQ(with.records.front().loss, without.records.front().loss);
  EXPECT_GT(entropy_of(with), entropy_of(without));
  for (const float bias : without.biases) EXPECT_EQ(bias, 0);
}

/// A run continues from its checkpoint as if it had not stopped.
TEST_P(SelectionBias, IsInCheckpoints) {
  auto in = inputs();
  in.train.steps = 12;
  in.train.micro_batch = in.train.global_batch / world().size();
  expect_continues_on({}, in);
}

}  // namespace
}  // namespace llamesh::test
