#include "comm/diagnosis/collective_fingerprint.hpp"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/fingerprint_check.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "comm/mesh/device_mesh.hpp"
#include "comm/mpi/session.hpp"
#include "core/process.hpp"
#include "support.hpp"
#include "watchdog_by_hand.hpp"

namespace llamesh::comm {
namespace {

using namespace std::chrono_literals;
using test::world;

using Calls = std::vector<CollectiveCall>;

TEST(ContractHash, DependsOnOrderKindDtypeAndSize) {
  const auto a = CollectiveCall::of("all-gather", "layers.1", "fp32", 64);
  const auto b = CollectiveCall::of("reduce-scatter", "layers.1", "fp32", 64);
  const auto hash = fingerprint_of(Calls{a, b});
  EXPECT_EQ(fingerprint_of(Calls{a, b}), hash);
  EXPECT_NE(fingerprint_of(Calls{b, a}), hash);
  EXPECT_NE(fingerprint_of(Calls{a}), hash);
  auto other = CollectiveCall::of("all-reduce", "layers.1", "fp32", 64);
  EXPECT_NE(fingerprint_of(Calls{a, other}), hash);
  other = CollectiveCall::of("reduce-scatter", "layers.1", "bf16", 64);
  EXPECT_NE(fingerprint_of(Calls{a, other}), hash);
  other = b;
  other.bytes = 128;
  EXPECT_NE(fingerprint_of(Calls{a, other}), hash);
}

TEST(ContractHash, DependsOnTheRootButNotOnSizesByPeer) {
  auto broadcast = CollectiveCall::of("broadcast", "layers.1", "fp32", 64);
  broadcast.root = 0;
  const auto hash = fingerprint_of(Calls{broadcast});
  broadcast.root = 1;
  EXPECT_NE(fingerprint_of(Calls{broadcast}), hash);

  auto parts = CollectiveCall::of("all-to-all", "layers.1", "fp32", 64);
  const auto equal_parts = fingerprint_of(Calls{parts});
  parts.by_peer = 1;
  const auto unequal_parts = fingerprint_of(Calls{parts});
  EXPECT_NE(unequal_parts, equal_parts);
  parts.bytes = 128;
  EXPECT_EQ(fingerprint_of(Calls{parts}), unequal_parts);
  EXPECT_EQ(describe(parts), "all-to-all of layers.1 (fp32 by counts)");
}

TEST(FirstDifference, IsShownWithWhatIsAroundIt) {
  const std::string same = "1\n2\n3\n4\n";
  EXPECT_EQ(first_difference(same, 0, same, 1), "");
  EXPECT_EQ(first_difference(same + "mine\n5\n", 0, same + "theirs\n5\n", 1),
            "rank 0 called 6 collectives in this step:\n"
            "    2: 2\n    3: 3\n    4: 4\n  > 5: mine\n    6: 5\n"
            "rank 1 called 6 collectives in this step:\n"
            "    2: 2\n    3: 3\n    4: 4\n  > 5: theirs\n    6: 5\n");
  EXPECT_EQ(first_difference("1\n", 0, "1\n2\n", 1),
            "rank 0 called 1 collectives in this step:\n    1: 1\n  > nothing more\n"
            "rank 1 called 2 collectives in this step:\n    1: 1\n  > 2: 2\n");
}

/// A fixture with one axis over all ranks that records its calls.
class CheckContracts : public testing::Test {
 protected:
  void SetUp() override { mesh_.keep_fingerprints(); }

  /// Runs a small collective with this dtype on the axis.
  void reduce(DType dtype) {
    auto& axis = *mesh_.axis("shard").collectives;
    axis.set_subject("layers.1");
    const Tensor parts = data_.tensor(dtype, {std::int64_t{32} * world().size()});
    axis.reduce_scatter(sum_.tensor(DType::f32, {32}), parts, Accumulate::no, {}).wait();
  }

  DeviceMesh mesh_{world(), discover_topology(world(), 0),
                   ParallelDims({{"shard", world().size()}})};
  device::Buffer data_{std::int64_t{4} * 32 * world().size()};
  device::Buffer sum_{128};
};

TEST_F(CheckContracts, PassesWhereAllCallTheSame) {
  for (int step = 0; step < 3; ++step) {
    reduce(DType::f32);
    reduce(DType::bf16);
    mesh_.check_fingerprints();
  }
}

/// An error as seen on this rank.
struct Seen {
  std::optional<ExitCode> code;
  std::string said;  ///< empty: another rank reports
};

template <class Work>
Seen seen_in(const Work& work) {
  try {
    work();
  } catch (const PeerFailure& failed) {
    return {failed.code(), ""};
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

/// With four ranks, the one that differs reports; with two, nobody knows which one is wrong, and
/// the first reports.
TEST_F(CheckContracts, NameTheRankThatDiffers) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const int other = world().size() - 1;
  auto& axis = *mesh_.axis("shard").collectives;
  reduce(DType::f32);
  // Imitates a rank that would move fewer bytes; a real call would hang or corrupt data.
  FlightRecorder::instance().ask(
      axis.members(),
      CollectiveCall::of("all-gather", "layers.2", "fp32", world().rank() == other ? 64 : 128));
  const auto [code, said] = seen_in([&] { mesh_.check_fingerprints(); });
  EXPECT_EQ(code, ExitCode::internal_error);
  const bool reports = world().rank() == (world().size() > 2 ? other : 0);
  EXPECT_EQ(said.empty(), !reports);
  if (!reports) return;
  const auto expected =
      world().size() > 2
          ? fmt::format(
                "rank {} on {} has called other collectives along shard in this step than "
                "the others; the log shows its calls and those of rank 0",
                other, this_process().host)
          : "ranks 0, 1 have called different collectives along shard in this step, without a";
  EXPECT_NE(said.find(expected), std::string::npos) << said;
}

/// In groups of two, the other groups decide.
TEST(CheckContractsOfPairs, NameTheRankThatDiffers) {
  if (world().size() < 4) GTEST_SKIP() << "needs two groups";
  DeviceMesh mesh(world(), discover_topology(world(), 0),
                  ParallelDims({{"replicate", world().size() / 2}, {"shard", 2}}));
  mesh.keep_fingerprints();
  const int other = 2;
  FlightRecorder::instance().ask(
      mesh.axis("shard").collectives->members(),
      CollectiveCall::of("all-gather", "layers.2", "fp32", world().rank() == other ? 64 : 128));
  const auto [code, said] = seen_in([&] { mesh.check_fingerprints(); });
  EXPECT_EQ(code, ExitCode::internal_error);
  EXPECT_EQ(said.find(fmt::format("debug.contract: rank {} on ", other)) == 0,
            world().rank() == other)
      << said;
}

/// One rank calls a broadcast while the others reduce, within a node and between single-rank nodes.
class AnotherCollective : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(RanksPerNode, AnotherCollective, testing::Values(0, 1));

TEST_P(AnotherCollective, IsFoundBeforeItRuns) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  DeviceMesh mesh(world(), discover_topology(world(), GetParam()),
                  ParallelDims({{"shard", world().size()}}));
  mesh.keep_fingerprints();
  auto& axis = *mesh.axis("shard").collectives;
  const device::Buffer data(128);
  const auto tensor = data.tensor(DType::f32, {32});
  const int other = world().size() - 1;
  axis.set_subject("layers.1");
  axis.all_reduce(tensor, {}).wait();
  axis.set_subject("layers.2");
  const auto [code, said] = seen_in([&] {
    (world().rank() == other ? axis.broadcast(tensor, 0, {}) : axis.all_reduce(tensor, {})).wait();
  });
  EXPECT_EQ(code, ExitCode::internal_error);
  const bool reports = world().rank() == (world().size() > 2 ? other : 0);
  EXPECT_EQ(said.empty(), !reports);
  if (!reports) return;
  for (const auto& part :
       {fmt::format("rank {} on {} ", world().rank(), this_process().host),
        fmt::format("rank {} for the broadcast of layers.2 (128 bytes of fp32)", other),
        std::string("for the all-reduce of layers.2 (128 bytes of fp32)"),
        std::string("along shard (number 2 there)")})
    EXPECT_NE(said.find(part), std::string::npos) << said;
}

/// A rank that sends while the others exchange equal parts.
TEST_P(AnotherCollective, IsFoundInSendsToPeersToo) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  DeviceMesh mesh(world(), discover_topology(world(), GetParam()),
                  ParallelDims({{"shard", world().size()}}));
  mesh.keep_fingerprints();
  auto& axis = *mesh.axis("shard").collectives;
  const device::Buffer data(256);
  const auto sent = data.tensor(DType::f32, {world().size()});
  const auto received = data.tensor(DType::f32, {world().size()}, 128);
  const int other = world().size() - 1;
  axis.set_subject("layers.2");
  const auto [code, said] = seen_in([&] {
    (world().rank() == other ? axis.send_recv(received, 0, sent, 0, {})
                             : axis.all_to_all(received, sent, {}))
        .wait();
  });
  EXPECT_EQ(code, ExitCode::internal_error);
  const bool reports = world().rank() == (world().size() > 2 ? other : 0);
  EXPECT_EQ(said.empty(), !reports);
  if (!reports) return;
  for (const auto& part :
       {fmt::format("rank {} for the send-recv of layers.2 (fp32 by counts)", other),
        fmt::format("for the all-to-all of layers.2 ({} bytes of fp32)", 4 * world().size())})
    EXPECT_NE(said.find(part), std::string::npos) << said;
}

TEST_P(AnotherCollective, IsNotAPeerWithOtherCounts) {
  DeviceMesh mesh(world(), discover_topology(world(), GetParam()),
                  ParallelDims({{"shard", world().size()}}));
  mesh.keep_fingerprints();
  auto& axis = *mesh.axis("shard").collectives;
  const device::Buffer data(256);
  // Rank r sends r elements to the next rank.
  const int to = (world().rank() + 1) % world().size();
  const int from = (world().rank() + world().size() - 1) % world().size();
  axis.send_recv(data.tensor(DType::f32, {from}), from,
                 data.tensor(DType::f32, {world().rank()}, 128), to, {})
      .wait();
  mesh.check_fingerprints();
}

TEST(MinorityOf, IsWhoDiffersFromMoreThanHalf) {
  const auto of = [](const std::vector<std::uint64_t>& values) { return minority_of(values); };
  EXPECT_EQ(of({7, 7, 7}), std::vector<int>{});
  EXPECT_EQ(of({7, 8, 7}), std::vector<int>{1});
  EXPECT_EQ(of({9, 7, 8, 7, 7}), (std::vector<int>{0, 2}));
  EXPECT_EQ(of({7, 8}), (std::vector<int>{0, 1}));
  EXPECT_EQ(of({7, 8, 7, 8}), (std::vector<int>{0, 1, 2, 3}));
}

/// One rank waits in a different collective: nobody is late, and neither collective can finish.
/// With four ranks that rank is named; with two, both are.
TEST(RanksInDifferentCollectives, AreNamedByTheDiagnosis) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const int other = world().size() / 2;
  const bool differs = world().rank() == other;
  const auto expected = world().size() > 2 ? std::vector{other} : std::vector{0, 1};
  Diagnosis diagnosis;
  {
    test::DiagnosisByHand hand(400ms);
    const auto both = world().duplicate();  // like all ranks, another thread is in one of these
    const InCollective in_both(both.members(), "all-gather", "layers.1");
    const InCollective in(world().members(), differs ? "all-gather" : "reduce-scatter",
                          differs ? "layers.2" : "layers.1");
    hand.arrival.poll_until([&] {
      if (diagnosis.ranks == expected) return true;
      hand.diagnosis.poll({Activity::training, 14, 1, 600, test::always_silent});
      // Rank 0 blames both until enough ranks have answered.
      if (auto now = hand.diagnosis.diagnose(); now && world().rank() == 0) diagnosis = *now;
      return world().rank() != 0;
    });
  }
  if (world().rank() != 0) return;
  EXPECT_EQ(diagnosis.kind, "order");
  EXPECT_EQ(diagnosis.ranks, expected);
  EXPECT_EQ(diagnosis.axis, "world");
  EXPECT_EQ(diagnosis.step, 14);
  for (const auto* part : {"in the reduce-scatter of layers.1 along world",
                           "in the all-gather of layers.2 along world",
                           "they have been asked for different collectives (number "})
    EXPECT_NE(diagnosis.line.find(part), std::string::npos) << diagnosis.line;
}

}  // namespace
}  // namespace llamesh::comm
