#include "train/health/stragglers.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace llamesh::train {
namespace {

class StragglersTest : public testing::Test {
 protected:
  /// Returns the messages during 20 steps with these seconds; the first step may differ.
  std::vector<std::string> after_20(const std::vector<double>& seconds,
                                    double first_of_rank_0 = 0) {
    std::vector<std::string> said;
    for (int step = 0; step < Stragglers::steps; ++step) {
      auto now = seconds;
      if (step == 0) now[0] += first_of_rank_0;
      const auto lines = stragglers_.observe(now);
      EXPECT_TRUE(lines.empty() || step + 1 == Stragglers::steps);
      said.insert(said.end(), lines.begin(), lines.end());
    }
    return said;
  }
  Stragglers stragglers_{{"node1", "node1", "node2", "node2"}};
};

TEST_F(StragglersTest, AreNamedOnceWithTheirHost) {
  const auto said = after_20({1.0, 1.1, 1.0, 1.3});
  EXPECT_EQ(said, std::vector<std::string>{
                      "rank 3 on node2 is slow: its own work took 1.300 s in the median of 20 "
                      "steps, 24 % more than the median of all ranks, 1.050 s"});
  EXPECT_TRUE(after_20({1.0, 1.1, 1.0, 1.3}).empty());
  EXPECT_TRUE(after_20({1.0, 1.0, 1.0, 1.0}).empty());
  EXPECT_EQ(after_20({1.0, 1.0, 1.0, 1.3}).size(), 1U);  // again
}

/// On a machine with more load than cores, ranks take turns.
TEST_F(StragglersTest, AreNamedLaterAndWithTheLoadOnABusyMachine) {
  const std::vector<double> loads{0.9, 0.9, 4.26, 4.26};
  const auto window = [&](const std::vector<double>& seconds) {
    std::vector<std::string> said;
    for (int step = 0; step < Stragglers::steps; ++step)
      for (const auto& line : stragglers_.observe(seconds, loads)) said.push_back(line);
    return said;
  };
  const std::vector<double> even{1, 1, 1, 1};
  const std::vector<double> slow{1, 1, 1, 40};
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_TRUE(window(slow).empty());
    EXPECT_TRUE(window(slow).empty());
    EXPECT_TRUE(window(even).empty());
  }
  EXPECT_EQ(window({1, 2, 1, 1}).size(), 1U) << "the other machine is not busy";
  EXPECT_TRUE(window(slow).empty());
  EXPECT_TRUE(window(slow).empty());
  const auto said = window(slow);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(said.front().ends_with(
      "; node2 has a load of 4.3 per core, so other programs may be the cause"))
      << said.front();
  EXPECT_TRUE(window(slow).empty()) << "once";
}

TEST_F(StragglersTest, AreNotThoseWithinAFifth) {
  EXPECT_TRUE(after_20({1.0, 1.0, 1.0, 1.19}).empty());
}

TEST_F(StragglersTest, AreNotThoseOfASingleSlowStep) {
  EXPECT_TRUE(after_20({1.0, 1.0, 1.0, 1.0}, 100).empty());
}

TEST_F(StragglersTest, AreComparedWithTheMiddleOfTheOthers) {
  EXPECT_TRUE(after_20({1.0, 1.0, 1.2, 1.3}).empty());  // 18 % above 1.1
  EXPECT_EQ(after_20({1.0, 1.0, 1.1, 1.3}).size(), 1U);
}

TEST_F(StragglersTest, WithShortStepsAreReportedAfterFiveSeconds) {
  std::vector<std::string> said;
  int steps = 0;
  for (; said.empty() && steps < 1000; ++steps)
    said = stragglers_.observe(std::vector{0.02, 0.02, 0.02, 0.04});
  EXPECT_NEAR(steps, Stragglers::window / 0.04, 1);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said.front().find(fmt::format("in the median of {} steps", steps)), std::string::npos)
      << said.front();
}

TEST_F(StragglersTest, AreNotThoseOfAFewMilliseconds) {
  const auto in_a_window = [&](const std::vector<double>& seconds) {
    std::size_t lines = 0;
    for (int step = 0; step < 600; ++step) lines += stragglers_.observe(seconds).size();
    return lines;
  };
  EXPECT_EQ(in_a_window({0.01, 0.01, 0.01, 0.019}), 0U);
  EXPECT_EQ(in_a_window({0.01, 0.01, 0.01, 0.021}), 1U);
}

TEST(StragglersOfTwo, AreReported) {
  Stragglers stragglers({"a", "b"});
  std::vector<std::string> said;
  for (int step = 0; step < Stragglers::steps; ++step)
    said = stragglers.observe(std::vector{1.3, 1.0});
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(said.front().starts_with("rank 0 on a is slow: ")) << said.front();
}

}  // namespace
}  // namespace llamesh::train
