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
  EXPECT_EQ(longest_reasonable({}, 600), 600);
  EXPECT_EQ(longest_reasonable({0.01}, 600), 60);
  EXPECT_EQ(longest_reasonable({20, 30, 1000}, 600), 150);
}

TEST(Watchdog, IsSilentWhileAllGoOn) {
  std::string told;
  {
    Watchdog watchdog(world(), [&](const std::string& line) { told = line; }, {10ms, 5000ms});
    for (int step = 1; step <= 5; ++step) {
      watchdog.begin(Activity::training, step);
      std::this_thread::sleep_for(30ms);
      world().barrier();
    }
  }
  EXPECT_EQ(told, "");
}

class LongActivity : public testing::Test {
 protected:
  /// Three seconds of the first step, of which one may go by without progress.
  static std::string told_of_a_first_step(bool progress) {
    std::promise<std::string> alarm;
    auto told = alarm.get_future();
    Watchdog watchdog(world(), [](const std::string&) {}, {10ms, 60s});
    watchdog.set_alarm([&](const std::string& line) { alarm.set_value(line); });
    watchdog.begin(Activity::training, 1, 1s);
    const auto end = std::chrono::steady_clock::now() + 3s;
    while (std::chrono::steady_clock::now() < end &&
           told.wait_for(20ms) != std::future_status::ready)
      if (progress) watchdog.progress();
    const bool came = told.wait_for(0s) == std::future_status::ready;
    world().barrier();
    return came ? told.get() : "nothing";
  }
};

TEST_F(LongActivity, WithoutProgressIsAHang) {
  const auto line = told_of_a_first_step(false);
  if (world().size() > 1 && line.empty()) return;  // heard from another rank
  EXPECT_NE(line.find("has been training step 1 for 1 s"), std::string::npos) << line;
}

TEST_F(LongActivity, WithProgressMayTakeAsLongAsItTakes) {
  EXPECT_EQ(told_of_a_first_step(true), "nothing");
}

class SilentRank : public testing::Test {
 protected:
  /// Rank 0 sends no sign of life within the test: the rank after it has to say so, and the others,
  /// rank by rank, are to hear of it.
  static void expect_alarm(const Watchdog::Limits& limits) {
    if (world().size() == 1) GTEST_SKIP() << "needs another rank";
    const bool silent = world().rank() == 0;
    std::promise<std::string> alarm;
    auto told = alarm.get_future();
    {
      Watchdog watchdog(
          world(), [&](const std::string& line) { alarm.set_value(line); },
          silent ? Watchdog::Limits{3600s, 3600s} : limits);
      watchdog.begin(Activity::training, 7);
      if (!silent) {
        ASSERT_EQ(told.wait_for(20s), std::future_status::ready);
        const auto line = told.get();
        if (world().rank() == 1) {
          EXPECT_NE(line.find("rank 0 on " + this_process().host), std::string::npos) << line;
          EXPECT_NE(line.find("no sign of life"), std::string::npos) << line;
        } else {
          EXPECT_EQ(line, "");
        }
      }
      world().barrier();
    }
  }
};

TEST_F(SilentRank, IsNamedByTheRankAfterIt) {
  expect_alarm({20ms, 600ms});
}

TEST_F(SilentRank, IsFoundSoonerWhenTheJobIsBeingEnded) {
  expect_alarm({20ms, 3600s, 300ms, [] { return true; }});
}

}  // namespace
}  // namespace llamesh::comm
