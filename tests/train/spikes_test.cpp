#include "train/health/spikes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace llamesh::train {
namespace {

class SpikesTest : public testing::Test {
 protected:
  /// Returns the messages during this many steps with these values plus some noise.
  std::vector<std::string> after(int steps, double loss, double norm) {
    std::vector<std::string> said;
    for (int i = 0; i < steps; ++i) {
      const double noise = std::normal_distribution<double>()(random_);
      const auto lines = spikes_.observe(++step_, loss + 0.05 * noise, norm * (1 + 0.1 * noise));
      said.insert(said.end(), lines.begin(), lines.end());
    }
    return said;
  }
  std::mt19937 random_{1};  // NOLINT(cert-msc51-cpp): the same numbers at every run
  Spikes spikes_;
  std::int64_t step_ = 0;
};

TEST_F(SpikesTest, AreReportedOnceWithStepAndMedian) {
  for (int i = 0; i < 100; ++i) spikes_.observe(i + 1, i % 2 == 0 ? 2.0 : 2.02, 1);
  EXPECT_EQ(spikes_.observe(101, 4.5, 1),
            std::vector<std::string>{"step 101: the loss is 4.5: 2.48 above the median of the last "
                                     "100 steps (2.02, median absolute deviation 0.02)"});
  for (int step = 102; step <= 130; ++step)  // it oscillates, but is one spike
    EXPECT_TRUE(spikes_.observe(step, step % 3 == 0 ? 2.0 : 4.5, 1).empty()) << step;
}

TEST_F(SpikesTest, AreReportedAgainAfterTenCalmSteps) {
  EXPECT_TRUE(after(100, 3, 0.5).empty());
  EXPECT_EQ(after(1, 5, 0.5).size(), 1U);
  EXPECT_TRUE(after(9, 3, 0.5).empty());
  EXPECT_TRUE(after(1, 5, 0.5).empty());
  EXPECT_TRUE(after(10, 3, 0.5).empty());
  EXPECT_EQ(after(1, 5, 0.5).size(), 1U);
}

TEST_F(SpikesTest, InTheGradientNormAreReportedSeparately) {
  EXPECT_TRUE(after(100, 3, 0.5).empty());
  const auto said = after(1, 3, 8);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(said.front().starts_with("step 101: the gradient norm is ")) << said.front();
}

TEST_F(SpikesTest, AreNotSmallDifferencesOfEqualValues) {
  for (int i = 0; i < 100; ++i) spikes_.observe(i + 1, 1e-3, 0.01);
  EXPECT_TRUE(spikes_.observe(101, 0.5, 0.05).empty());
  EXPECT_EQ(spikes_.observe(102, 0.502, 0.051).size(), 2U);
}

TEST_F(SpikesTest, AreNotTheFirstStepsNorALevelThatStays) {
  EXPECT_TRUE(after(20, 10, 1).empty());
  EXPECT_TRUE(after(29, 14, 30).empty());  // fewer than 50 steps
  Spikes fresh;
  std::swap(spikes_, fresh);
  EXPECT_TRUE(after(100, 3, 1).empty());
  EXPECT_EQ(after(60, 6, 1).size(), 1U);
  EXPECT_TRUE(after(100, 6, 1).empty());
}

TEST_F(SpikesTest, AreNotTheFallOfALossNorAWarmUp) {
  for (int step = 1; step <= 300; ++step)
    EXPECT_TRUE(
        spikes_.observe(step, 3 + 8 * std::exp(-step / 40.0), 0.5 + std::min(step, 100) / 50.0)
            .empty())
        << step;
}

TEST_F(SpikesTest, AreNotValuesThatAreNotFinite) {
  EXPECT_TRUE(after(60, 3, 1).empty());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int i = 0; i < 60; ++i)
    EXPECT_TRUE(spikes_.observe(++step_, nan, std::numeric_limits<double>::infinity()).empty());
  EXPECT_TRUE(after(10, 3, 1).empty());
  EXPECT_EQ(after(1, 6, 1).size(), 1U);
}

}  // namespace
}  // namespace llamesh::train
