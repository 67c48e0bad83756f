#include "comm/contract.hpp"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>

#include "comm/device_mesh.hpp"
#include "comm/in_collective.hpp"
#include "comm/session.hpp"
#include "comm/watchdog.hpp"
#include "core/process.hpp"
#include "mpi_world.hpp"

namespace llamesh::comm {
namespace {

using namespace std::chrono_literals;
using test::world;

Contract contract_of(const std::vector<Contract::Call>& calls) {
  Contract contract;
  for (const auto& call : calls) contract.note(call);
  return contract;
}

TEST(ContractHash, DependsOnOrderKindDtypeAndSize) {
  const Contract::Call a{"all-gather", "layers.1", DType::f32, 64};
  const Contract::Call b{"reduce-scatter", "layers.1", DType::f32, 64};
  const auto hash = contract_of({a, b}).hash();
  EXPECT_EQ(contract_of({a, b}).hash(), hash);
  EXPECT_NE(contract_of({b, a}).hash(), hash);
  EXPECT_NE(contract_of({a}).hash(), hash);
  auto other = b;
  other.kind = "all-reduce";
  EXPECT_NE(contract_of({a, other}).hash(), hash);
  other = b;
  other.dtype = DType::bf16;
  EXPECT_NE(contract_of({a, other}).hash(), hash);
  other = b;
  other.bytes = 128;
  EXPECT_NE(contract_of({a, other}).hash(), hash);
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

/// An axis of all ranks that keeps its contract.
class CheckContracts : public testing::Test {
 protected:
  void SetUp() override { mesh_.keep_contracts(); }

  /// A small collective of the dtype, on this axis.
  void reduce(DType dtype) {
    auto& axis = *mesh_.axis("shard").collectives;
    axis.set_subject("layers.1");
    const Tensor parts = data_.tensor(dtype, {std::int64_t{32} * world().size()});
    axis.reduce_scatter(sum_.tensor(DType::f32, {32}), parts, Accumulate::no, {}).wait();
  }

  DeviceMesh mesh_{world(), discover_topology(world(), 0),
                   ParallelDims({{"shard", world().size()}})};
  device::Buffer data_{std::int64_t{4} * 32 * world().size()};
  device::Buffer sum_{4 * 32};
};

TEST_F(CheckContracts, PassesWhereAllCallTheSame) {
  for (int step = 0; step < 3; ++step) {
    reduce(DType::f32);
    reduce(DType::bf16);
    mesh_.check_contracts();
  }
}

TEST_F(CheckContracts, NamesTheAxisAndTwoRanksThatDiffer) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const int other = world().size() - 1;
  auto& axis = *mesh_.axis("shard").collectives;
  reduce(DType::f32);
  // As a rank that would move fewer bytes, which would hang or corrupt if it were called.
  axis.contract()->note({"all-gather", "layers.2", DType::f32, world().rank() == other ? 64 : 128});
  std::string said;
  std::optional<ExitCode> code;
  try {
    mesh_.check_contracts();
  } catch (const PeerFailure& failed) {
    code = failed.code();
  } catch (const Error& error) {
    code = error.code();
    said = error.what();
  }
  EXPECT_EQ(code, ExitCode::internal_error);
  if (world().rank() != 0) return;
  EXPECT_NE(
      said.find(fmt::format("ranks 0 and {} have called different collectives along shard", other)),
      std::string::npos)
      << said;
}

/// A rank waits in another collective than the others: nobody is late, and none of them ends.
TEST(RanksInDifferentCollectives, AreNamedByTheRollCall) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const int other = world().size() / 2;
  const bool differs = world().rank() == other;
  std::promise<Verdict> alarm;
  auto reported = alarm.get_future();
  {
    Watchdog watchdog(
        world(), [&](const Verdict& verdict) { alarm.set_value(verdict); },
        {.interval = 20ms, .silence = 30s, .in_a_collective = 200ms, .answer = 1000ms});
    watchdog.begin(Activity::training, 14);
    const InCollective in(world().members(), differs ? "all-gather" : "reduce-scatter",
                          differs ? "layers.2" : "layers.1");
    ASSERT_EQ(reported.wait_for(20s), std::future_status::ready);
    std::this_thread::sleep_for(200ms);  // the alarm reaches the others
  }
  const auto verdict = reported.get();
  if (world().rank() != 0 && verdict.line.empty()) return;  // heard from another rank
  EXPECT_EQ(verdict.kind, "order");
  EXPECT_EQ(verdict.axis, "world");
  EXPECT_EQ(verdict.step, 14);
  for (const auto* part : {"in the reduce-scatter of layers.1 along world",
                           "in the all-gather of layers.2 along world",
                           "they have been asked for different collectives (number "})
    EXPECT_NE(verdict.line.find(part), std::string::npos) << verdict.line;
}

}  // namespace
}  // namespace llamesh::comm
