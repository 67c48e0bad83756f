#include "train/step/replica_check.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "comm/mpi/session.hpp"
#include "core/hash.hpp"
#include "core/process.hpp"
#include "runs/small_run.hpp"
#include "support.hpp"

namespace llamesh::train {
namespace {

using sharding::Strategy;
using test::world;

/// A trainer for the small model over all ranks, with a replica check.
class CheckedTrainer {
 public:
  explicit CheckedTrainer(const Inputs& in)
      : setup_(make_setup(world(), in)),
        mesh_(world(), setup_.topology, setup_.mesh),
        trainer_(world(), setup_, mesh_),
        check_(world(), setup_, mesh_, trainer_) {
    trainer_.start();
  }

  /// Runs a step and the check like run.cpp; `then` runs between the two.
  std::vector<std::string> step(const std::function<void()>& then = [] {}) {
    std::vector<std::string> lines;
    const auto repair = [&] {
      lines = check_.check_again();
      return !lines.empty();
    };
    losses_.push_back(trainer_.train_step([] {}, [](double) { return 0; }, repair).loss);
    then();
    if (check_.due()) std::ranges::copy(check_.check(), std::back_inserter(lines));
    return lines;
  }
  ReplicaCheck& check() { return check_; }
  const std::vector<double>& losses() const { return losses_; }

  /// Flips a bit on one rank. Kind 0: master weights; 1, 2: moments; 3: the weights of the latest
  /// exchange of replicas that train apart.
  void flip(int rank, std::size_t kind) {
    if (world().rank() != rank) return;
    const auto& state = trainer_.state();
    const auto& tensor = kind == 0   ? state.masters()
                         : kind == 3 ? state.outer().front()
                                     : state.moments()[kind - 1];
    auto* bytes = static_cast<unsigned char*>(tensor.shards.back().data());
    bytes[7] ^= 0x40U;  // in an exponent: a small number becomes huge
  }
  /// Flips bit 30 in a norm's weight on one rank: a number from 1 to 2 becomes a NaN.
  void flip_to_nan(int rank) {
    if (world().rank() != rank) return;
    for (const auto& shard : trainer_.state().masters().shards)
      for (float& value : shard.span<float>()) {
        if (value <= 1 || value >= 2) continue;
        value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U << 30U);
        ASSERT_TRUE(std::isnan(value));
        return;
      }
    ADD_FAILURE() << "no weight above 1";
  }
  /// Returns this rank's shards of the master weights and the moments.
  std::vector<float> state() const {
    std::vector<float> all;
    const auto add = [&](const sharding::ShardedTensor& tensor) {
      for (const auto& shard : tensor.shards) {
        const auto values = shard.span<float>();
        all.insert(all.end(), values.begin(), values.end());
      }
    };
    add(trainer_.state().masters());
    for (const auto& moment : trainer_.state().moments()) add(moment);
    return all;
  }

 private:
  Setup setup_;
  comm::DeviceMesh mesh_;
  Trainer trainer_;
  ReplicaCheck check_;
  std::vector<double> losses_;
};

Inputs replicas_in(const test::TemporaryFolder& folder, std::int64_t every = 1,
                   OnMismatch on_mismatch = OnMismatch::stop) {
  auto in = test::small_inputs(folder.path());
  in.model.num_hidden_layers = 1;
  in.train.global_batch = world().size();
  in.sharding.strategy = Strategy::no_shard;  // each rank is a replica
  in.debug.replica_hash_every = every;
  in.debug.on_mismatch = on_mismatch;
  return in;
}

std::vector<int> all_but(int rank) {
  std::vector<int> ranks(static_cast<std::size_t>(world().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::erase(ranks, rank);
  return ranks;
}

TEST(FindMismatches, AMajorityOfThreeOrMoreDecidesInEachGroup) {
  const comm::ParallelDims dims({{"replicate", 4}, {"shard", 2}});
  const std::vector<comm::AxisSet> replicas = {dims.named({"replicate"}), dims.all()};
  // Among ranks 0, 2, 4, 6 one differs; among 1, 3, 5, 7 two; in the second group, none.
  const std::vector<std::uint64_t> hashes = {1, 9, 5, 9, 1, 9, 6, 9, 2, 9, 6, 9, 1, 9, 5, 9};
  const auto found = find_mismatches(hashes, replicas, dims);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].shards, 0U);
  EXPECT_EQ(found[0].differ, (std::vector<int>{4}));
  EXPECT_EQ(found[0].agree, (std::vector<int>{0, 2, 6}));
  EXPECT_EQ(found[1].differ, (std::vector<int>{1, 3, 5, 7}));
  EXPECT_TRUE(found[1].agree.empty());
}

TEST(FindMismatches, NothingIsFoundWhereThereAreNoReplicas) {
  const comm::ParallelDims dims({{"shard", 3}});
  const std::vector<comm::AxisSet> none(1);
  EXPECT_TRUE(find_mismatches(std::vector<std::uint64_t>{1, 2, 3}, none, dims).empty());
}

/// Returns the error with which check() ends on this rank.
template <class Action>
std::string stopped_by(const Action& action) {
  return test::left_by(action, ExitCode::stopped_early);
}

void expect_stop_that_names(int rank, const std::string& left) {
  const int reporter = world().size() == 2 ? 0 : rank;
  if (world().rank() != reporter) {
    EXPECT_EQ(left, "follows");
    return;
  }
  const auto host = this_process().host;
  const auto named =
      world().size() == 2
          ? fmt::format("rank 0 on {0}, rank 1 on {0} hold the same shards", host)
          : fmt::format("rank {} on {} differs in weights or moments from ranks {}, which", rank,
                        host, fmt::join(all_but(rank), ", "));
  EXPECT_NE(left.find(named), std::string::npos) << left;
}

TEST(ReplicaCheck, ABitOfTheWeightsIsFoundAfterTheStep) {
  const test::TemporaryFolder folder;
  CheckedTrainer trainer(replicas_in(folder));
  EXPECT_TRUE(trainer.step().empty());
  expect_stop_that_names(1, stopped_by([&] { trainer.step([&] { trainer.flip(1, 0); }); }));
}

TEST(ReplicaCheck, ABitOfAMomentIsFoundAtTheNextComparison) {
  const test::TemporaryFolder folder;
  CheckedTrainer trainer(replicas_in(folder, 3));
  const int rank = world().size() - 1;
  EXPECT_EQ(stopped_by([&] { trainer.step([&] { trainer.flip(rank, 2); }); }), "");
  EXPECT_EQ(stopped_by([&] { trainer.step(); }), "");
  expect_stop_that_names(rank, stopped_by([&] { trainer.step(); }));
}

/// Their own weights differ, which is no fault.
TEST(ReplicaCheck, ReplicasThatTrainApartShareOnlyTheWeightsOfTheirLatestExchange) {
  const test::TemporaryFolder folder;
  auto in = replicas_in(folder);
  in.optimizer.outer = {.every_steps = 3, .fragments = 2, .delay_steps = 2};
  CheckedTrainer trainer(in);
  for (int step = 1; step <= 5; ++step) EXPECT_TRUE(trainer.step().empty()) << step;
  expect_stop_that_names(1, stopped_by([&] { trainer.step([&] { trainer.flip(1, 3); }); }));
}

TEST(ReplicaCheck, BeforeASaveItComparesBetweenItsSteps) {
  const test::TemporaryFolder folder;
  CheckedTrainer trainer(replicas_in(folder, 3));
  EXPECT_TRUE(trainer.step([&] { trainer.flip(1, 1); }).empty());
  EXPECT_NE(stopped_by([&] { trainer.check().check(); }), "");
}

/// The run has not diverged: one replica has a NaN in its weights, whether or not every step is
/// compared.
TEST(ReplicaCheck, ABitThatMakesANanIsFoundBeforeTheStepIsJudged) {
  for (const std::int64_t every : {1, 5}) {
    const test::TemporaryFolder folder;
    CheckedTrainer trainer(replicas_in(folder, every));
    const int rank = world().size() - 1;
    trainer.step();
    trainer.step();
    trainer.flip_to_nan(rank);  // after the comparison, if there was one
    expect_stop_that_names(rank, stopped_by([&] { trainer.step(); }));
  }
}

TEST(ReplicaCheck, AHealedNanLeavesNoTrace) {
  if (world().size() < 3) GTEST_SKIP() << "needs a majority";
  for (const std::int64_t every : {1, 5}) {
    const test::TemporaryFolder folder;
    const auto in = replicas_in(folder, every, OnMismatch::heal);
    CheckedTrainer trainer(in), undisturbed(in);
    for (int step = 1; step <= 4; ++step) {
      if (step == 3) trainer.flip_to_nan(1);
      undisturbed.step();
      const auto lines = trainer.step();
      ASSERT_EQ(lines.size(), step == 3 ? 1U : 0U) << step;
    }
    EXPECT_EQ(trainer.state(), undisturbed.state());
    EXPECT_EQ(trainer.losses(), undisturbed.losses());
  }
}

/// Replicas that agree on a NaN are not a machine's fault.
TEST(ReplicaCheck, ADivergedRunIsNotTakenForAFlippedBit) {
  const test::TemporaryFolder folder;
  CheckedTrainer trainer(replicas_in(folder, 5));
  trainer.step();
  trainer.step();
  for (int rank = 0; rank < world().size(); ++rank) trainer.flip_to_nan(rank);
  const auto left = test::left_by([&] { trainer.step(); }, ExitCode::no_progress);
  EXPECT_EQ(left == "follows", world().rank() != 0) << left;
}

TEST(ReplicaCheck, WithTwoReplicasAndShardsOnlyTheHoldersOfThatShardAreNamed) {
  if (world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const test::TemporaryFolder folder;
  auto in = replicas_in(folder, 1, OnMismatch::heal);  // needs a majority, and stops too
  in.sharding.strategy = Strategy::hybrid_shard;
  in.mesh = {.replicate = 2, .shard = 2};
  CheckedTrainer trainer(in);
  const auto left = stopped_by([&] { trainer.step([&] { trainer.flip(3, 0); }); });
  if (world().rank() != 1) {
    EXPECT_EQ(left, "follows");
    return;
  }
  EXPECT_NE(left.find("rank 1 on"), std::string::npos) << left;
  EXPECT_NE(left.find("rank 3 on"), std::string::npos) << left;
  EXPECT_EQ(left.find("rank 0 on"), std::string::npos) << left;
  EXPECT_NE(left.find("no majority"), std::string::npos) << left;
}

/// Flips a bit in the weights after step 2, and bits in the moments after 3 and 5. The updates in 4
/// and 6 turn these into wrong weights, and wrong copies if the weights are gathered from copies.
void expect_healed_run_continues_as_undisturbed(const Inputs& in) {
  CheckedTrainer trainer(in);
  auto unchecked = in;
  unchecked.debug.replica_hash_every = 0;
  CheckedTrainer undisturbed(unchecked);
  const std::map<int, std::size_t> flips = {{2, 0}, {3, 1}, {5, 2}};
  for (int step = 1; step <= 7; ++step) {
    undisturbed.step();
    const auto lines = trainer.step([&] {
      if (flips.contains(step)) trainer.flip(1, flips.at(step));
    });
    ASSERT_EQ(lines.size(), step % 2 == 0 ? 1U : 0U) << step;
    for (const auto& line : lines)
      EXPECT_TRUE(line.starts_with(fmt::format("after step {}: rank 1 on ", step))) << line;
    if (step % 2 == 0) {
      EXPECT_EQ(trainer.state(), undisturbed.state()) << step;
    }
  }
  EXPECT_EQ(trainer.state(), undisturbed.state());
  EXPECT_EQ(trainer.losses(), undisturbed.losses());
}

TEST(ReplicaCheck, AHealedRunContinuesAsIfNothingHadHappened) {
  if (world().size() < 3) GTEST_SKIP() << "needs a majority";
  const test::TemporaryFolder folder;
  auto in = replicas_in(folder, 2, OnMismatch::heal);
  in.precision.parameters = DType::bf16;
  if (world().size() == 3) in.sharding.offload = sharding::Offload::optimizer;
  expect_healed_run_continues_as_undisturbed(in);
}

void expect_no_alarm(const Inputs& in, const std::string& compared) {
  CheckedTrainer trainer(in);
  EXPECT_TRUE(
      trainer.check().describe().starts_with("replicas are compared every 1 steps: " + compared))
      << trainer.check().describe();
  for (int step = 0; step < 20; ++step) EXPECT_EQ(stopped_by([&] { trainer.step(); }), "");
}

TEST(ReplicaCheck, UndisturbedReplicasAgree) {
  const test::TemporaryFolder folder;
  auto in = replicas_in(folder);
  if (world().size() == 3) in.sharding.offload = sharding::Offload::all;
  expect_no_alarm(in, "3 of 3");
}

TEST(ReplicaCheck, UndisturbedReplicasOfShardsAgree) {
  if (world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const test::TemporaryFolder folder;
  auto in = replicas_in(folder);
  in.sharding.strategy = Strategy::hybrid_shard;
  in.mesh = {.replicate = 2, .shard = 2, .ranks_per_node = 2};
  expect_no_alarm(in, "3 of 3");
  in.sharding.offload = sharding::Offload::optimizer;
  in.precision.parameters = DType::bf16;
  expect_no_alarm(in, "3 of 3");
}

TEST(ReplicaCheck, UndisturbedReplicasWithATensorAxisAgree) {
  if (world().size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const test::TemporaryFolder folder;
  auto in = replicas_in(folder);
  in.model.num_key_value_heads = 1;
  in.model.vocab_size = 258;
  in.mesh = {.replicate = 2, .shard = 1, .tensor = 2};
  expect_no_alarm(in, "3 of 3");
}

TEST(ReplicaCheck, FullShardHasNoReplicasToCompare) {
  const test::TemporaryFolder folder;
  auto in = replicas_in(folder);
  in.sharding.strategy = Strategy::full_shard;
  CheckedTrainer trainer(in);
  EXPECT_NE(trainer.check().describe().find(": 0 of"), std::string::npos);
  EXPECT_EQ(stopped_by([&] { trainer.step([&] { trainer.flip(0, 0); }); }), "");
}

TEST(ReplicaCheck, PrintsHowFastItHashes) {
  const std::vector<char> bytes(256 << 20, 1);
  const auto start = std::clock();  // for this process
  RunningHash hash;
  for (std::size_t at = 0; at < bytes.size(); at += 8 << 20) hash.add(&bytes[at], 8 << 20);
  EXPECT_NE(hash.value(), 0U);
  const auto seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (world().rank() == 0)
    std::printf("%.1f GB/s of a core\n", 1e-9 * static_cast<double>(bytes.size()) / seconds);
}

}  // namespace
}  // namespace llamesh::train
