#include <gtest/gtest.h>

#include <cmath>

#include "plan/step_plan.hpp"
#include "runs/whole_run.hpp"

// Losses on routers and the balance of experts over the global batch of a step, on every mesh.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;

/// With `micro_batches` per rank.
train::Inputs balanced_inputs(const std::filesystem::path& folder, const std::string& family,
                              std::int64_t ranks, std::int64_t micro_batches = 1) {
  auto in = inputs_in(folder);
  in.model.family = family == "mixtral" ? family : "qwen3_moe";
  in.model.num_experts = 5;
  in.model.num_experts_per_tok = 2;
  if (family == "dense_among_sparse")
    in.model.num_hidden_layers = 6, in.model.decoder_sparse_step = 2,
    in.model.mlp_only_layers = {3};
  if (family != "mixtral") in.model.moe_intermediate_size = 30;
  in.model.output_router_logits = true;
  in.model.router_aux_loss_coef = 0.25;
  in.model.router_z_loss_coef = 0.01;
  in.train.micro_batch = in.train.global_batch / ranks / micro_batches;
  in.train.steps = 10;
  in.log.experts = train::ExpertMetrics::per_layer;
  return in;
}

/// Returns the records of a run.
std::vector<train::StepRecord> records(const comm::Communicator& ranks,
                                       const train::Inputs& inputs) {
  const train::Setup setup = plan::make_planned_setup(ranks, inputs);
  comm::DeviceMesh mesh(ranks, setup.topology, setup.mesh);
  train::Trainer trainer(ranks, setup, mesh);
  trainer.start();
  std::vector<train::StepRecord> all;
  while (trainer.step() < inputs.train.steps) all.push_back(trainer.train_step());
  return all;
}

std::vector<train::StepRecord> records_alone(train::Inputs inputs) {
  inputs.mesh = {};
  inputs.sharding.strategy = sharding::Strategy::no_shard;
  inputs.run.folder += "-alone";
  return records(world().split(world().rank(), 0), inputs);
}

void expect_alike(const std::vector<train::StepRecord>& seen,
                  const std::vector<train::StepRecord>& expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    SCOPED_TRACE(fmt::format("step {}", i + 1));
    EXPECT_NEAR(seen[i].loss, expected[i].loss, 1e-5);
    EXPECT_NEAR(seen[i].grad_norm, expected[i].grad_norm, 1e-4 * expected[i].grad_norm);
    const auto &a = seen[i].experts.value(), &b = expected[i].experts.value();
    EXPECT_NEAR(a.all.aux_loss, b.all.aux_loss, 1e-5);
    EXPECT_NEAR(a.z_loss.value(), b.z_loss.value(), 1e-5 * b.z_loss.value());
    EXPECT_NEAR(a.all.max_load, b.all.max_load, 0.03);  // a tie may be broken another way
    EXPECT_NEAR(a.all.min_load, b.all.min_load, 0.03);
    EXPECT_NEAR(a.all.entropy, b.all.entropy, 1e-3);
    EXPECT_EQ(a.layers.size(), b.layers.size());
    EXPECT_GE(a.layers.size(), 2U);
    EXPECT_LE(a.all.min_load, 1);
    EXPECT_GE(a.all.max_load, 1);
  }
}

class ExpertBalanceOn : public testing::TestWithParam<const char*> {
 protected:
  train::Inputs inputs(std::int64_t ranks, std::int64_t micro_batches = 1) const {
    return balanced_inputs(folder_.path(), GetParam(), ranks, micro_batches);
  }

 private:
  const SharedFolder folder_;
};

TEST_P(ExpertBalanceOn, AnyMeshIsThatOfOneRank) {
  const auto alone = records_alone(inputs(1));
  auto in = inputs(world().size());
  for (const auto strategy : {sharding::Strategy::full_shard, sharding::Strategy::hybrid_shard,
                              sharding::Strategy::no_shard}) {
    SCOPED_TRACE(sharding::name_of(strategy));
    in.sharding.strategy = strategy;
    expect_alike(records(world(), in), alone);
  }
  in.memory.activation_checkpointing = ActivationCheckpointing::selective;
  in.memory.full_checkpointing_layers = 1;
  in.memory.activation_offload = true;
  expect_alike(records(world(), in), alone);
}

/// The loss balances: without it, the load is less even.
TEST_P(ExpertBalanceOn, SeveralMicroBatchesIsReportedOverTheStep) {
  auto in = inputs(world().size(), 3);
  const auto balanced = records(world(), in);
  in.model.output_router_logits = false;
  const auto free = records(world(), in);
  // The first step has the same weights, and the reported loss does not depend on the gradients.
  EXPECT_EQ(balanced.front().loss, free.front().loss);
  EXPECT_EQ(balanced.front().experts->all.aux_loss, free.front().experts->all.aux_loss);
  EXPECT_NEAR(balanced.front().experts->all.aux_loss,
              records_alone(inputs(1)).front().experts->all.aux_loss, 1e-5);
  EXPECT_LT(balanced.back().experts->all.aux_loss, free.back().experts->all.aux_loss);
}

TEST_P(ExpertBalanceOn, AMeshTakesThePlannedTrafficAndMemory) {
  const auto in = inputs(world().size(), 3);
  const auto seen = records(world(), in).back();
  const auto setup = plan::make_planned_setup(world(), in);
  const auto planned = plan::plan_on_this_device(setup, world().rank(), 1);
  EXPECT_EQ(seen.traffic, planned.traffic);
  // Less than any collective's buffers for messages.
  EXPECT_NEAR(static_cast<double>(seen.peak), static_cast<double>(seen.predicted_peak), 1e5);
  EXPECT_NEAR(static_cast<double>(seen.allocated_after_step),
              static_cast<double>(seen.predicted_allocated_after_step), 1e5);
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertBalanceOn,
                         testing::Values("mixtral", "qwen3_moe", "dense_among_sparse"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace llamesh::test
