#include "train/health/replay_check.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <functional>

#include "core/process.hpp"
#include "ops/ops.hpp"
#include "runs/small_run.hpp"
#include "support.hpp"

namespace llamesh {
namespace {

/// A processor's fault: it flips a bit in the result of one kernel.
struct WrongKernel {
  enum class Result : std::uint8_t { activation, gradient } result = Result::activation;
  int calls_before = 0;  ///< to that kernel
  int times = 1;
  int calls_between = 0;
  bool armed = false;
};
WrongKernel wrong_kernel;
std::array<int, 2> kernel_calls;  // by result

/// Flips a high bit of the mantissa in the middle of the result, if the fault is due.
void maybe_flip(WrongKernel::Result result, const Tensor& values) {
  auto& fault = wrong_kernel;
  ++kernel_calls.at(static_cast<std::size_t>(result));
  if (!fault.armed || result != fault.result || fault.calls_before-- > 0) return;
  fault.armed = --fault.times > 0;
  fault.calls_before = fault.calls_between;
  float& value = values.span<float>()[static_cast<std::size_t>(values.numel() / 2)];
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U << 22U);
}

}  // namespace

// Mangled names of the wrapped kernels (CMakeLists.txt).
#define LINEAR "_ZN7llamesh3ops3cpu6linearERNS_6device6StreamENS_6TensorES5_S5_NS_10AccumulateE"
#define LINEAR_BACKWARD_WEIGHT                                                          \
  "_ZN7llamesh3ops3cpu22linear_backward_weightERNS_6device6StreamENS_6TensorES5_S5_NS_" \
  "10AccumulateE"

void real_linear(device::Stream& stream, Tensor y, Tensor x, Tensor w,
                 Accumulate accumulate) __asm__("__real_" LINEAR);
void wrapped_linear(device::Stream& stream, Tensor y, Tensor x, Tensor w,
                    Accumulate accumulate) __asm__("__wrap_" LINEAR);
void real_weight_gradient(device::Stream& stream, Tensor dw, Tensor dy, Tensor x,
                          Accumulate accumulate) __asm__("__real_" LINEAR_BACKWARD_WEIGHT);
void wrapped_weight_gradient(device::Stream& stream, Tensor dw, Tensor dy, Tensor x,
                             Accumulate accumulate) __asm__("__wrap_" LINEAR_BACKWARD_WEIGHT);

void wrapped_linear(device::Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  real_linear(stream, y, x, w, accumulate);
  maybe_flip(WrongKernel::Result::activation, y);
}

void wrapped_weight_gradient(device::Stream& stream, Tensor dw, Tensor dy, Tensor x,
                             Accumulate accumulate) {
  real_weight_gradient(stream, dw, dy, x, accumulate);
  maybe_flip(WrongKernel::Result::gradient, dw);
}

namespace train {
namespace {

using test::world;
using Result = WrongKernel::Result;

TEST(FindFaults, NamesEachRankIfRanksExchangeNothing) {
  const comm::ParallelDims dims({{"replicate", 2}, {"shard", 2}});
  const auto found = find_faults(std::vector<std::int64_t>{0, 3, 0, 1}, {}, dims);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].ranks, (std::vector<int>{1}));
  EXPECT_EQ(found[0].difference, 3);
  EXPECT_EQ(found[1].ranks, (std::vector<int>{3}));
  EXPECT_TRUE(find_faults(std::vector<std::int64_t>{0, 0, 0, 0}, {}, dims).empty());
}

TEST(FindFaults, NamesTheFirstToDifferAmongThoseThatExchangeValues) {
  const comm::ParallelDims dims({{"shard", 2}, {"tensor", 3}});
  const auto found = find_faults(std::vector<std::int64_t>{0, 0, 0, 4, 2, 2}, dims.tensor(), dims);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].ranks, (std::vector<int>{4, 5}));
  EXPECT_EQ(found[0].difference, 2);
}

// A stage's later differences may come from another one's fault.
TEST(FindFaults, NamesTheFirstToDifferOfEachPipelineStage) {
  const comm::ParallelDims dims({{"replicate", 2}, {"pipeline", 2}, {"tensor", 2}});
  const auto found = find_faults(std::vector<std::int64_t>{5, 9, 1, 1, 0, 0, 0, 7},
                                 dims.pipeline() | dims.tensor(), dims);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].ranks, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(found[0].difference, 5);
  EXPECT_EQ(found[1].ranks, (std::vector<int>{7}));
  EXPECT_EQ(found[1].difference, 7);
}

/// A trainer for the small model over all ranks.
class ReplayingTrainer {
 public:
  explicit ReplayingTrainer(const Inputs& in)
      : setup_(make_setup(world(), in)),
        mesh_(world(), setup_.topology, setup_.mesh),
        trainer_(world(), setup_, mesh_) {
    trainer_.start();
  }

  StepRecord step() {
    kernel_calls = {};
    return trainer_.train_step();
  }
  /// Returns the calls in a pass over a micro-batch. Call it after a step without a replay.
  static int calls_per_pass(Result result) {
    return kernel_calls.at(static_cast<std::size_t>(result)) / 3;
  }
  /// Makes a rank compute wrong results from now on.
  void break_rank(int rank, WrongKernel fault) {
    if (world().rank() != rank) return;
    wrong_kernel = fault;
    wrong_kernel.armed = true;
  }
  /// Returns this rank's error after a step in which `rank` is at fault; "follows" if another rank
  /// reports.
  std::string step_with(int rank, WrongKernel fault) {
    break_rank(rank, fault);
    auto left = test::left_by([&] { step(); }, ExitCode::stopped_early);
    EXPECT_FALSE(world().rank() == rank && wrong_kernel.armed) << "the fault did not happen";
    wrong_kernel.armed = false;
    return left;
  }
  std::string healed() const { return trainer_.observers().replay().healed(); }
  std::vector<float> masters() const {
    std::vector<float> all;
    for (const auto& shard : trainer_.state().masters().shards) {
      const auto values = shard.span<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  Setup setup_;
  comm::DeviceMesh mesh_;
  Trainer trainer_;
};

/// Returns inputs with three micro-batches per step; every second step repeats one.
Inputs replaying_in(const test::TemporaryFolder& folder,
                    sharding::Strategy strategy = sharding::Strategy::full_shard) {
  auto in = test::small_inputs(folder.path());
  in.model.vocab_size = 258;
  in.model.num_key_value_heads = 6;
  in.train.global_batch = 3 * std::int64_t{world().size()};
  in.sharding.strategy = strategy;
  in.debug.replay_every = 2;
  return in;
}

void expect_named(const std::string& left, int reporter, const std::string& named) {
  if (world().rank() == reporter)
    EXPECT_EQ(left.find(named), 0U) << left;
  else
    EXPECT_EQ(left, "follows");
}

std::string on_this_host(int rank) {
  return fmt::format("in step 2, rank {} on {} computed different bits for the same micro-batch, ",
                     rank, this_process().host);
}

class FaultIn : public testing::TestWithParam<std::tuple<sharding::Strategy, bool>> {};

TEST_P(FaultIn, AnActivationIsNamed) {
  const auto [strategy, in_own_pass] = GetParam();
  const test::TemporaryFolder folder;
  ReplayingTrainer trainer(replaying_in(folder, strategy));
  trainer.step();
  const int rank = world().size() - 1;
  const int calls = 5 + (in_own_pass ? trainer.calls_per_pass(Result::activation) : 0);
  const auto left = trainer.step_with(rank, {Result::activation, calls});
  expect_named(left, rank, on_this_host(rank) + "first in the loss;");
}

/// The backward pass begins with the head and goes on with the last layer.
TEST_P(FaultIn, AGradientIsNamedWithItsUnit) {
  const auto [strategy, in_own_pass] = GetParam();
  const test::TemporaryFolder folder;
  ReplayingTrainer trainer(replaying_in(folder, strategy));
  trainer.step();
  const int rank = world().size() / 2;
  const int per_pass = trainer.calls_per_pass(Result::gradient);
  const int layer_1 = 1 + (per_pass - 1) / 3;
  const int calls = layer_1 + (in_own_pass ? per_pass : 0);
  const auto left = trainer.step_with(rank, {Result::gradient, calls});
  expect_named(left, rank, on_this_host(rank) + "first in the gradient of model.layers.1;");
}

INSTANTIATE_TEST_SUITE_P(ReplayCheck, FaultIn,
                         testing::Combine(testing::Values(sharding::Strategy::full_shard,
                                                          sharding::Strategy::no_shard,
                                                          sharding::Strategy::hybrid_shard),
                                          testing::Bool()));

TEST(ReplayCheck, DoesNotSeeAFaultInAnotherStepOrMicroBatch) {
  const test::TemporaryFolder folder;
  ReplayingTrainer trainer(replaying_in(folder));
  EXPECT_EQ(trainer.step_with(0, {Result::gradient, 0}), "");
  EXPECT_EQ(trainer.step_with(0, {Result::gradient, 2 * trainer.calls_per_pass(Result::gradient)}),
            "");
}

TEST(ReplayCheck, AlongTensorNamesTheRanksToWhichAnActivationSpreads) {
  if (world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const test::TemporaryFolder folder;
  auto in = replaying_in(folder);
  in.mesh = {.tensor = 2};
  const auto begin = fmt::format(
      "in step 2, ranks 2, 3 on {}, which exchange values along tensor, ", this_process().host);
  {
    ReplayingTrainer trainer(in);
    trainer.step();
    expect_named(trainer.step_with(3, {Result::activation, 5}), 2, begin);
  }
  // A weight's gradient does not spread.
  ReplayingTrainer trainer(in);
  trainer.step();
  expect_named(trainer.step_with(3, {Result::gradient, 9}), 3, on_this_host(3));
}

/// The load-balancing loss adds up all ranks' choices of experts: with other choices on one rank,
/// the gradients of all others' routers differ.
TEST(ReplayCheck, NamesTheRankWhoseLossDiffersIfItsChoicesOfExpertsSpread) {
  if (world().size() == 1) GTEST_SKIP() << "needs others";
  const test::TemporaryFolder folder;
  auto in = replaying_in(folder);
  in.model.family = "mixtral";
  in.model.num_experts = 8;
  in.model.num_experts_per_tok = 1;
  in.model.output_router_logits = true;
  in.model.router_aux_loss_coef = 10;
  ReplayingTrainer trainer(in);
  trainer.step();
  const int rank = world().size() - 1;
  const auto left = trainer.step_with(rank, {Result::activation, 0});
  expect_named(left, rank, on_this_host(rank) + "first in the loss;");
}

TEST(ReplayCheck, HealsByComputingAgain) {
  const test::TemporaryFolder folder;
  auto in = replaying_in(folder);
  in.debug.on_mismatch = OnMismatch::heal;
  ReplayingTrainer trainer(in), undisturbed(in);
  for (int step = 1; step <= 4; ++step) {
    const auto expected = undisturbed.step();
    if (step == 2)
      trainer.break_rank(0, {Result::gradient, trainer.calls_per_pass(Result::gradient) + 3});
    const auto record = trainer.step();
    EXPECT_EQ(record.loss, expected.loss);
    EXPECT_EQ(record.grad_norm, expected.grad_norm);
    ASSERT_EQ(record.healed.size(), step == 2 ? 1U : 0U) << step;
    for (const auto& line : record.healed) EXPECT_EQ(line.find(on_this_host(0)), 0U);
  }
  EXPECT_EQ(trainer.masters(), undisturbed.masters());
}

TEST(ReplayCheck, DoesNotHealARankThatIsWrongAgain) {
  const test::TemporaryFolder folder;
  auto in = replaying_in(folder);
  in.debug.on_mismatch = OnMismatch::heal;
  ReplayingTrainer trainer(in);
  trainer.step();
  // In both replays, with the step's three micro-batches between them.
  const int between = 4 * trainer.calls_per_pass(Result::activation) - 1;
  const auto left = trainer.step_with(0, {Result::activation, 5, 2, between});
  expect_named(left, 0, on_this_host(0));
  const bool says_so =
      left.find(", also when the passes were computed again; ") != std::string::npos;
  EXPECT_EQ(says_so, world().rank() == 0) << left;
  EXPECT_EQ(trainer.healed().find("passes were computed again once since the start, last because " +
                                  on_this_host(0)),
            0U);
}

}  // namespace
}  // namespace train
}  // namespace llamesh
