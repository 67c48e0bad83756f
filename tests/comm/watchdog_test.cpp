#include "comm/watchdog.hpp"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "core/process.hpp"
#include "mpi_world.hpp"

namespace llamesh::comm {
namespace {

using namespace std::chrono_literals;
using test::world;

TEST(LongestReasonable, IsFiveTimesTheMedianAndAMinuteAtLeast) {
  EXPECT_EQ(longest_reasonable({}), 1800);
  EXPECT_EQ(longest_reasonable({0.01}), 60);
  EXPECT_EQ(longest_reasonable({20, 30, 1000}), 150);
}

TEST(Watchdog, IsSilentWhileAllGoOn) {
  std::string told;
  {
    Watchdog watchdog(world(), [&](const std::string& line) { told = line; }, {10ms, 2000ms});
    for (int step = 1; step <= 5; ++step) {
      watchdog.begin(Activity::training, step);
      std::this_thread::sleep_for(30ms);
      world().barrier();
    }
  }
  EXPECT_EQ(told, "");
}

// Rank 0 sends no sign of life within the test: the rank after it has to say so, and no other.
TEST(Watchdog, NamesTheRankThatIsSilent) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  std::promise<std::string> alarm;
  auto told = alarm.get_future();
  const Watchdog::Limits limits =
      world().rank() == 0 ? Watchdog::Limits{3600s, 3600s} : Watchdog::Limits{20ms, 600ms};
  {
    Watchdog watchdog(
        world(), [&](const std::string& line) { alarm.set_value(line); }, limits);
    watchdog.begin(Activity::training, 7);
    const bool heard =
        told.wait_for(world().rank() == 1 ? 20s : 1200ms) == std::future_status::ready;
    EXPECT_EQ(heard, world().rank() == 1);
    if (heard) {
      const auto line = told.get();
      EXPECT_NE(line.find("rank 0 on " + this_process().host), std::string::npos) << line;
      EXPECT_NE(line.find("no sign of life"), std::string::npos) << line;
    }
    world().barrier();
  }
}

}  // namespace
}  // namespace llamesh::comm
