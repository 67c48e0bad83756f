#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/format/state_reader.hpp"
#include "ops/bf16_products.hpp"
#include "runs/whole_run.hpp"

// Whole runs that stop and resume. All ranks in a run share its folder.

namespace llamesh::test {
namespace {

using sharding::Strategy;

/// Returns step -> loss; each step appears once.
std::map<std::int64_t, double> losses_of(const std::filesystem::path& run) {
  std::map<std::int64_t, double> losses;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry.contains("event")) continue;
    EXPECT_TRUE(losses.emplace(entry.at("step"), entry.at("loss")).second)
        << "twice: " << entry.at("step");
  }
  return losses;
}

struct ResumeCase {
  Strategy strategy;
  std::int64_t global_batch;  ///< 12: accumulation; an epoch over the text has 343 sequences
  DType dtype = DType::f32;
  optim::OptimizerOptions optimizer = {};
};

class Resume : public testing::TestWithParam<ResumeCase> {};

TEST_P(Resume, OnTheSameMeshIsExact) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.sharding.strategy = GetParam().strategy;
  in.train.global_batch = GetParam().global_batch;
  in.precision.parameters = GetParam().dtype;
  in.optimizer = GetParam().optimizer;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  run_to_the_end(in);
  const auto unbroken = losses_of(in.run.folder);
  ASSERT_EQ(unbroken.size(), 12U);
  // As after a kill: the newer checkpoints were never committed.
  if (world().rank() == 0)
    for (const auto* step : {"10", "12"}) std::filesystem::remove_all(checkpoint_of(in, step));
  world().barrier();
  run_to_the_end(in);
  EXPECT_EQ(losses_of(in.run.folder), unbroken);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Resume,
    testing::Values(ResumeCase{Strategy::hybrid_shard, 12}, ResumeCase{Strategy::full_shard, 60},
                    ResumeCase{Strategy::no_shard, 12},
                    ResumeCase{Strategy::hybrid_shard_zero2, 12, DType::bf16},
                    ResumeCase{.strategy = Strategy::full_shard,
                               .global_batch = 12,
                               .optimizer = {.lr = 3e-3, .moments = DType::bf16}},
                    ResumeCase{.strategy = Strategy::hybrid_shard,
                               .global_batch = 12,
                               .optimizer = {.name = optim::OptimizerName::muon, .lr = 3e-3}},
                    ResumeCase{.strategy = Strategy::full_shard,
                               .global_batch = 12,
                               .optimizer = {.name = optim::OptimizerName::muon,
                                             .lr = 3e-3,
                                             .moments = DType::bf16}}));

// A checkpoint holds moments in fp32, whatever the run holds.
TEST(ResumeMoments, InTheOtherTypeGoesOnWithAlmostTheSameLosses) {
  for (const auto before : {DType::f32, DType::bf16}) {
    const SharedFolder folder;
    auto in = inputs_in(folder.path());
    in.optimizer.moments = before;
    run_to_the_end(in);
    const auto expected = losses_of(in.run.folder);
    in.checkpoint.resume = checkpoint_of(in, "05");
    in.optimizer.moments = before == DType::f32 ? DType::bf16 : DType::f32;
    in.run.folder = (folder.path() / "other").string();
    run_to_the_end(in);
    const auto seen = losses_of(in.run.folder);
    ASSERT_EQ(seen.size(), 7U);
    for (const auto& [step, loss] : seen)
      EXPECT_NEAR(loss, expected.at(step), 0.01 * loss) << "step " << step;
  }
}

// The time and source of gathers are no part of the state.
TEST(ResumeGathers, UnderAnotherReshardingAndPrefetchIsExact) {
  using sharding::ReshardAfterForward;
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.sharding.strategy = Strategy::full_shard;
  in.precision.parameters = DType::bf16;
  if (world().size() == 4) in.sharding.reshard_after_forward = ReshardAfterForward{2};
  run_to_the_end(in);
  const auto unbroken = losses_of(in.run.folder);
  ASSERT_EQ(unbroken.size(), 12U);
  for (const auto reshard : {ReshardAfterForward::yes, ReshardAfterForward::no}) {
    world().barrier();
    if (world().rank() == 0)
      for (const auto* step : {"10", "12"}) std::filesystem::remove_all(checkpoint_of(in, step));
    world().barrier();
    in.sharding.reshard_after_forward = reshard;
    in.sharding.prefetch += 2;
    in.sharding.keep_bf16_weights = reshard == ReshardAfterForward::yes
                                        ? sharding::KeepBf16Weights::no
                                        : sharding::KeepBf16Weights::yes;
    run_to_the_end(in);
    EXPECT_EQ(losses_of(in.run.folder), unbroken);
  }
}

// The faster method is measured at every launch, and bits depend on it.
TEST(ResumeBf16, ComputesProductsAsTheCheckpointsRunDid) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.precision.parameters = DType::bf16;
  run_to_the_end(in);
  const auto manifest_of = [&](const char* step) {
    return std::filesystem::path(checkpoint_of(in, step)) / "manifest.json";
  };
  auto manifest = checkpoint::read_manifest(checkpoint_of(in, "05"));
  EXPECT_EQ(manifest.progress.bf16_products, name_of(ops::bf16_products()));
  manifest.progress.bf16_products = "fp32";
  world().barrier();  // after all ranks have read it
  if (world().rank() == 0) {
    for (const auto* step : {"10", "12"}) std::filesystem::remove_all(checkpoint_of(in, step));
    std::ofstream(manifest_of("05")) << checkpoint::to_text(manifest);
  }
  world().barrier();
  run_to_the_end(in);
  EXPECT_EQ(ops::bf16_products(), ops::Bf16Products::in_fp32);
  EXPECT_EQ(checkpoint::read_manifest(checkpoint_of(in, "12")).progress.bf16_products, "fp32");
  EXPECT_EQ(losses_of(in.run.folder).size(), 12U);
}

TEST(ResumeOnAnotherMesh, GoesOnWithTheSameLosses) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  run_to_the_end(in);
  const auto expected = losses_of(in.run.folder);
  in.checkpoint.resume = checkpoint_of(in, "05");
  for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard,
                              Strategy::hybrid_shard, Strategy::hybrid_shard_zero2}) {
    in.sharding.strategy = strategy;
    in.sharding.wrap.wrap = sharding::Wrap::none;
    in.run.folder = (folder.path() / sharding::name_of(strategy)).string();
    in.mesh = {};
    run_to_the_end(in);
    for (const auto& [step, loss] : losses_of(in.run.folder))
      EXPECT_NEAR(loss, expected.at(step), 1e-5 * loss)
          << sharding::name_of(strategy) << " step " << step;
  }
}

}  // namespace
}  // namespace llamesh::test
