#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "runs/small_run.hpp"

// LLAMESH_POISON=1: memory that Fsdp has released, or nobody has written yet, is NaN.

namespace llamesh::test {
namespace {

using sharding::Strategy;

class Poisoned {
 public:
  Poisoned() { setenv("LLAMESH_POISON", "1", 1); }
  ~Poisoned() { unsetenv("LLAMESH_POISON"); }
  Poisoned(const Poisoned&) = delete;
  Poisoned& operator=(const Poisoned&) = delete;
};

/// Returns inputs; with `by_messages` each rank is its own node, so that no memory is shared.
train::Inputs poisoned_inputs(Strategy strategy, DType dtype, bool by_messages,
                              const TemporaryFolder& folder) {
  auto in = small_inputs(folder.path());
  in.sharding.strategy = strategy;
  in.precision.parameters = in.precision.reduce = dtype;
  if (by_messages) in.mesh.ranks_per_node = 1;
  in.train.steps = 3;
  return in;
}

class EveryStrategyPoisoned : public testing::TestWithParam<std::tuple<Strategy, DType, bool>> {};

TEST_P(EveryStrategyPoisoned, TrainsAsWithoutPoison) {
  const auto [strategy, dtype, by_messages] = GetParam();
  const TemporaryFolder folder;
  auto in = poisoned_inputs(strategy, dtype, by_messages, folder);
  const auto clean = run(world(), in);
  const Poisoned poisoned;
  if (!by_messages) in.sharding.keep_bf16_weights = sharding::KeepBf16Weights::no;
  const auto other = run(world(), in);
  EXPECT_EQ(clean.losses, other.losses);
  EXPECT_EQ(clean.masters, other.masters);
}

INSTANTIATE_TEST_SUITE_P(
    Poison, EveryStrategyPoisoned,
    testing::Combine(testing::Values(Strategy::full_shard, Strategy::shard_grad_op,
                                     Strategy::no_shard, Strategy::hybrid_shard,
                                     Strategy::hybrid_shard_zero2),
                     testing::Values(DType::f32, DType::bf16), testing::Bool()));

// Covers secondary shards, and units that are gathered far ahead.
TEST(Poison, TrainsAsWithoutUnderEveryResharding) {
  for (const bool by_messages : {false, true}) {
    const TemporaryFolder folder;
    auto in = poisoned_inputs(Strategy::full_shard, DType::bf16, by_messages, folder);
    const auto clean = run(world(), in);
    const Poisoned poisoned;
    in.sharding.prefetch = 3;
    for (const int reshard : {0, 1, 2}) {
      if (world().size() % std::max(reshard, 1) != 0) continue;
      in.sharding.reshard_after_forward = sharding::ReshardAfterForward{reshard};
      const auto other = run(world(), in);
      EXPECT_EQ(clean.losses, other.losses) << reshard;
      EXPECT_EQ(clean.masters, other.masters) << reshard;
    }
  }
}

/// Checks a unit after its last use, and a gradient that nobody has written.
TEST(Poison, ReachesWhatIsNoLongerOrNotYetValid) {
  const TemporaryFolder folder;
  const auto setup = plan::make_planned_setup(
      world(), poisoned_inputs(Strategy::full_shard, DType::bf16, /*by_messages=*/true, folder));
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  const Poisoned poisoned;
  sharding::ShardedState state(*setup.layout, mesh, setup.inputs.precision, {});
  state.initialize(1, 0.02F);
  sharding::Fsdp fsdp(state, mesh, setup.inputs.sharding, setup.inputs.precision);
  fsdp.on_master_weights_loaded();
  const auto& unit = setup.layout->units().front();
  const auto id = unit.parameters.front();
  const auto first = [](const Tensor& t) { return static_cast<float>(t.span<bf16>()[0]); };

  fsdp.enter(unit.modules.front(), model::Pass::forward);
  const Tensor weights = fsdp.parameter(id);
  EXPECT_TRUE(std::isfinite(first(weights)));
  EXPECT_TRUE(std::isnan(first(fsdp.gradient(id).tensor)));
  fsdp.leave(unit.modules.front(), model::Pass::forward);
  EXPECT_TRUE(std::isnan(first(weights)));
}

}  // namespace
}  // namespace llamesh::test
