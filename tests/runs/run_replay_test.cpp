#include <gtest/gtest.h>

#include "runs/whole_run.hpp"
#include "train/run/replay.hpp"

// `llamesh replay`: steps of a run, trained again.

namespace llamesh::test {
namespace {

using sharding::Strategy;
using train::Reproducible;

/// Returns inputs for a run of 6 steps that saves every 2, and hashes its state every 2.
train::Inputs recorded_inputs(const std::filesystem::path& folder, Reproducible reproducible) {
  auto in = inputs_in(folder);
  in.train.steps = 6;
  in.train.global_batch = 8;
  in.train.reproducible = reproducible;
  in.checkpoint.every_steps = 2;
  in.debug.state_hash_every = 2;
  return in;
}

train::RunMetrics records_of(const train::Inputs& in) {
  return train::read_metrics(in.run.folder + "/metrics.jsonl");
}

/// Trains again on these ranks.
train::ReplayEnd replay_on(const comm::Communicator& ranks, const train::Inputs& in,
                           const char* checkpoint, const train::RunMetrics& recorded,
                           std::int64_t last) {
  const auto setup = plan::make_planned_setup(ranks, in);
  auto watchdog = train::watch_over(ranks);
  return train::replay(ranks, setup, checkpoint_of(in, checkpoint), recorded, last, watchdog);
}

TEST(RunReplay, FindsTheSameBitsOnAnotherMesh) {
  const SharedFolder folder;
  auto in = recorded_inputs(folder.path(), Reproducible::mesh);
  in.sharding.strategy = Strategy::full_shard;
  run_to_the_end(in);
  const auto recorded = records_of(in);
  EXPECT_EQ(recorded.state_hashes.size(), 3U);
  EXPECT_EQ(recorded.state_hashes.at(4).count("model.layers.2"), 1U);
  EXPECT_EQ(recorded.state_hashes.at(4).count("model.embed_tokens.weight"), 1U);
  const auto alone = world().split(world().rank(), 0);
  auto there = in;
  there.sharding.strategy = Strategy::no_shard;
  const auto end = replay_on(alone, there, "02", recorded, 6);
  EXPECT_EQ(end.difference, "");
  EXPECT_EQ(end.first, 3);
  EXPECT_EQ(end.last, 6);
  EXPECT_EQ(end.hashed, 2);
}

TEST(RunReplay, FindsTheSameBitsOnOneRankInPlaceOfTensorRanks) {
  if (world().size() < 2) GTEST_SKIP() << "needs tensor ranks";
  const SharedFolder folder;
  auto in = recorded_inputs(folder.path(), Reproducible::mesh);
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 258;
  in.mesh.tensor = 2;
  in.sharding.strategy = Strategy::full_shard;
  run_to_the_end(in);
  auto there = in;
  there.mesh = {};
  there.train.reproducible_tensor = 2;
  const auto recorded = records_of(in);
  const auto end = replay_on(world().split(world().rank(), 0), there, "02", recorded, 6);
  EXPECT_EQ(end.difference, "");
  EXPECT_EQ(end.hashed, 2);
}

TEST(RunReplay, FindsTheSameBitsOnTheSameMesh) {
  const SharedFolder folder;
  const auto in = recorded_inputs(folder.path(), Reproducible::launch);
  run_to_the_end(in);
  EXPECT_EQ(replay_on(world(), in, "04", records_of(in), 6).difference, "");
}

TEST(RunReplay, NamesTheFirstStepAndWhatDiffersInIt) {
  const SharedFolder folder;
  const auto in = recorded_inputs(folder.path(), Reproducible::mesh);
  run_to_the_end(in);
  auto norm = records_of(in);
  norm.steps.at(5).grad_norm = std::nextafter(norm.steps.at(5).grad_norm, 1e9);
  const auto differs = replay_on(world(), in, "04", norm, 6);
  EXPECT_TRUE(differs.difference.starts_with("step 5 differs: gradient norm "))
      << differs.difference;
  EXPECT_EQ(differs.last, 5);

  auto state = records_of(in);
  state.state_hashes.at(4).at("model.layers.1") = "0123456789abcdef";
  EXPECT_EQ(
      replay_on(world(), in, "02", state, 6).difference,
      "step 4 differs: loss and gradient norm are equal, but not the weights or moments after "
      "it in model.layers.1");
}

TEST(RunReplay, RefusesWhatIsNotThere) {
  const SharedFolder folder;
  const auto in = recorded_inputs(folder.path(), Reproducible::mesh);
  run_to_the_end(in);
  const auto recorded = records_of(in);
  const auto refusal = [&](std::int64_t first, std::int64_t last) {
    return error_of([&] { train::plan_replay(in.run.folder, recorded, first, last); });
  };
  EXPECT_EQ(train::plan_replay(in.run.folder, recorded, 5, 6).checkpoint, checkpoint_of(in, "04"));
  EXPECT_EQ(train::plan_replay(in.run.folder, recorded, 4, 6).checkpoint, checkpoint_of(in, "02"));
  EXPECT_EQ(refusal(2, 2),
            in.run.folder +
                " has no checkpoint before step 2: its oldest is of step 2; replay a "
                "later step");
  EXPECT_EQ(refusal(5, 9), in.run.folder + " has no record of step 9: it has steps 1 to 6");
}

TEST(RunReplay, RefusesOtherData) {
  if (world().size() > 1) GTEST_SKIP() << "the program ends there";
  const SharedFolder folder;
  const auto in = recorded_inputs(folder.path(), Reproducible::mesh);
  run_to_the_end(in);
  std::ofstream(in.data.train.front(), std::ios::app) << "more text";
  const auto setup = plan::make_planned_setup(world(), in);
  auto watchdog = train::watch_over(world());
  const auto refusal = error_of(
      [&] { train::replay(world(), setup, checkpoint_of(in, "04"), records_of(in), 6, watchdog); });
  EXPECT_TRUE(refusal.starts_with("the training data are not those that the run was trained on: "))
      << refusal;
}

}  // namespace
}  // namespace llamesh::test
