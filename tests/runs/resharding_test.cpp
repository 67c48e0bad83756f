#include <gtest/gtest.h>

#include "runs/small_run.hpp"

// Whole runs with units gathered from other ranks, or earlier.

namespace llamesh::test {
namespace {

using sharding::Strategy;

/// Source and time of gathers. No bit in a run may depend on them.
struct Schedule {
  int reshard;  ///< a ReshardAfterForward
  int prefetch;
  std::int64_t prefetch_limit = 0;
};

std::vector<Schedule> schedules() {
  const int ranks = world().size();
  std::vector<Schedule> all{{0, 2}, {1, 4}, {-1, 4, 20000}};
  for (int group = 2; group < ranks; ++group)
    if (ranks % group == 0) all.push_back({group, 5 - group, group == 2 ? 30000 : 0});
  return all;
}

using ScheduleCase = std::tuple<Strategy, DType, model::ActivationCheckpointing>;
class EverySchedule : public testing::TestWithParam<ScheduleCase> {};

TEST_P(EverySchedule, GivesTheSameBits) {
  if (world().size() == 8) return;  // 4 and 6 ranks have all groups
  const auto [strategy, dtype, recompute] = GetParam();
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.sharding.strategy = strategy;
  // By size, a layer's attention and MLP are separate units.
  const bool by_size = recompute != model::ActivationCheckpointing::none;
  in.sharding.wrap = {by_size ? sharding::Wrap::size : sharding::Wrap::layer, 2500};
  in.mesh.ranks_per_node = world().size() / 2;
  in.precision.parameters = dtype;
  in.memory.activation_checkpointing = recompute;
  in.train.steps = 3;
  in.sharding.keep_bf16_weights = sharding::KeepBf16Weights::no;
  const auto plain = run(world(), in);
  for (const auto& schedule : schedules()) {
    in.sharding.keep_bf16_weights =
        schedule.reshard < 0 ? sharding::KeepBf16Weights::no : sharding::KeepBf16Weights::yes;
    in.sharding.reshard_after_forward = sharding::ReshardAfterForward{schedule.reshard};
    in.sharding.prefetch = schedule.prefetch;
    in.sharding.prefetch_limit = schedule.prefetch_limit;
    const auto other = run(world(), in);
    const auto what =
        fmt::format("reshard_after_forward {} prefetch {}", schedule.reshard, schedule.prefetch);
    EXPECT_EQ(other.losses, plain.losses) << what;
    EXPECT_EQ(other.norms, plain.norms) << what;
    EXPECT_EQ(other.masters, plain.masters) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Training, EverySchedule,
                         testing::Values(ScheduleCase{Strategy::full_shard, DType::bf16,
                                                      model::ActivationCheckpointing::none},
                                         ScheduleCase{Strategy::full_shard, DType::f32,
                                                      model::ActivationCheckpointing::none},
                                         ScheduleCase{Strategy::shard_grad_op, DType::bf16,
                                                      model::ActivationCheckpointing::full}));

// MiCS: shards over part of a node, replicas within it and on other nodes.
TEST(MicsMesh, GivesTheLossesOfOneRank) {
  if (world().size() != 8) return;
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.mesh = {.shard = 2, .ranks_per_node = 4};
  in.train.global_batch = 16;
  const auto alone = run_alone(in).losses;
  for (const auto strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_zero2}) {
    in.sharding.strategy = strategy;
    EXPECT_EQ(comm::to_string(plan::make_planned_setup(world(), in).mesh), "replicate=4 x shard=2");
    const auto seen = run(world(), in).losses;
    for (std::size_t i = 0; i < seen.size(); ++i)
      EXPECT_NEAR(seen[i], alone[i], 1e-5 * alone[i]) << "step " << i + 1;
  }
}

// Shard and tensor axis are both split in two: two ranks share each kv head.
TEST(SecondaryShards, GiveTheSameBitsBesideATensorAxis) {
  if (world().size() != 8) return;
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.sharding.strategy = Strategy::full_shard;
  in.mesh = {.tensor = 2, .ranks_per_node = 4};
  in.model.num_key_value_heads = 1;
  in.model.vocab_size = 257;  // padded to 264
  in.precision.parameters = DType::bf16;
  in.train.steps = 4;
  const auto plain = run(world(), in);
  in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
  const auto other = run(world(), in);
  EXPECT_EQ(other.losses, plain.losses);
  EXPECT_EQ(other.masters, plain.masters);
  EXPECT_LT(other.traffic.at("shard"), plain.traffic.at("shard"));
}

}  // namespace
}  // namespace llamesh::test
