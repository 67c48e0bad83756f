#include "optim/schedule.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace llamesh::optim {
namespace {

constexpr std::int64_t total = 100;
constexpr std::array all_names{ScheduleName::constant, ScheduleName::linear, ScheduleName::cosine,
                               ScheduleName::wsd};

ScheduleOptions options(ScheduleName name, std::int64_t warmup, std::int64_t decay, double low) {
  return {.name = name, .warmup_steps = warmup, .decay_steps = decay, .min_lr_ratio = low};
}

double rate(const ScheduleOptions& schedule, std::int64_t step) {
  return learning_rate(schedule, 2.0, step, total);
}

TEST(Warmup, RisesFromTheFirstStepToTheFullRate) {
  for (const auto name : all_names) {
    const auto schedule = options(name, 8, 20, 0.1);
    EXPECT_DOUBLE_EQ(rate(schedule, 0), 0.25);
    EXPECT_DOUBLE_EQ(rate(schedule, 3), 1.0);
    EXPECT_DOUBLE_EQ(rate(schedule, 7), 2.0);
    EXPECT_DOUBLE_EQ(rate(schedule, 8), 2.0);
  }
}

TEST(Warmup, MayBeMissing) {
  for (const auto name : all_names)
    EXPECT_DOUBLE_EQ(rate(options(name, 0, 20, 0.1), 0), 2.0) << static_cast<int>(name);
}

TEST(Warmup, MayLastLongerThanTheRun) {
  for (const auto name : all_names)
    for (std::int64_t step = 0; step < total; ++step)
      ASSERT_DOUBLE_EQ(rate(options(name, 400, 0, 0.1), step), static_cast<double>(step + 1) / 200);
}

TEST(Constant, StaysWhereItIs) {
  for (std::int64_t step = 10; step < 2 * total; ++step)
    ASSERT_DOUBLE_EQ(rate(options(ScheduleName::constant, 10, 30, 0.1), step), 2.0);
}

TEST(Linear, FallsToTheMinimumAtTheEndOfTheRun) {
  const auto schedule = options(ScheduleName::linear, 20, 0, 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 60), 2 * 0.55);
  EXPECT_NEAR(rate(schedule, 99), 2 * (1 - 0.9 * 79 / 80), 1e-14);
  EXPECT_DOUBLE_EQ(rate(schedule, 100), 0.2);
  EXPECT_DOUBLE_EQ(rate(schedule, 1000), 0.2);
}

TEST(Linear, DecayStepsCountFromTheEndOfTheWarmup) {
  const auto schedule = options(ScheduleName::linear, 20, 10, 0.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 25), 1.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 29), 0.2);
  EXPECT_DOUBLE_EQ(rate(schedule, 30), 0.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 99), 0.0);
}

TEST(Cosine, HasItsQuartersInTheRightPlaces) {
  const auto schedule = options(ScheduleName::cosine, 20, 0, 0.2);
  EXPECT_NEAR(rate(schedule, 40), 2 * (0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2), 1e-14);
  EXPECT_NEAR(rate(schedule, 60), 2 * 0.6, 1e-14);
  EXPECT_NEAR(rate(schedule, 80), 2 * (0.2 + 0.8 * (1 - std::sqrt(0.5)) / 2), 1e-14);
  EXPECT_NEAR(rate(schedule, 100), 0.4, 1e-14);
  EXPECT_NEAR(rate(schedule, 500), 0.4, 1e-14);
}

TEST(Cosine, DecayStepsCountFromTheEndOfTheWarmup) {
  const auto schedule = options(ScheduleName::cosine, 10, 40, 0.2);
  EXPECT_NEAR(rate(schedule, 30), 2 * 0.6, 1e-14);
  EXPECT_NEAR(rate(schedule, 50), 0.4, 1e-14);
  EXPECT_NEAR(rate(schedule, 51), 0.4, 1e-14);
}

TEST(Wsd, IsConstantAndThenFallsOverTheLastSteps) {
  const auto schedule = options(ScheduleName::wsd, 10, 20, 0.1);
  for (std::int64_t step = 10; step <= 80; ++step) ASSERT_DOUBLE_EQ(rate(schedule, step), 2.0);
  EXPECT_LT(rate(schedule, 81), 2.0);
  EXPECT_DOUBLE_EQ(rate(schedule, 90), 2 * 0.55);
  EXPECT_DOUBLE_EQ(rate(schedule, 100), 0.2);
}

TEST(MinLrRatio, OfOneIsConstant) {
  for (const auto name : all_names)
    for (std::int64_t step = 5; step < total; ++step)
      ASSERT_DOUBLE_EQ(rate(options(name, 5, 50, 1.0), step), 2.0);
}

/// No jumps: rises by at most one warmup step, then never rises again, and falls by at most a
/// cosine's steepest slope.
TEST(EverySchedule, IsContinuous) {
  for (const auto name : all_names) {
    const auto schedule = options(name, 25, 40, 0.05);
    for (std::int64_t step = 1; step < total + 10; ++step) {
      const double change = rate(schedule, step) - rate(schedule, step - 1);
      const std::string where = std::to_string(static_cast<int>(name)) + "@" + std::to_string(step);
      if (step < 25)
        ASSERT_NEAR(change, 2.0 / 25, 1e-14) << where;
      else
        ASSERT_LE(change, 1e-14) << where;
      ASSERT_GE(change, -2.0 * 0.95 * std::acos(-1.0) / 2 / 40) << where;
    }
  }
}

TEST(EverySchedule, SurvivesARunOfOneStep) {
  for (const auto name : all_names)
    EXPECT_DOUBLE_EQ(learning_rate(options(name, 0, 0, 0.1), 2.0, 0, 1), 2.0);
}

}  // namespace
}  // namespace llamesh::optim
