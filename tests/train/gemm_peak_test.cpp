#include "train/engine/flops.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "support.hpp"

namespace llamesh::train {
namespace {

using Rates = std::vector<double>;

/// Returns a peak that "measures" these sets of windows, one after another.
GemmPeak peak_of(std::vector<Rates> sets) {
  return GemmPeak([sets, next = 0U]() mutable { return sets.at(next++); });
}

TEST(GemmPeak, IsTheBestWindow) {
  EXPECT_EQ(peak_of({{200e9, 20e9, 230e9, 228e9, 210e9}}).rate(), 230e9);
}

TEST(GemmPeak, ReportsWindowsThatDiffer) {
  EXPECT_EQ(peak_of({{225e9, 231e9, 235e9, 20e9, 230e9}}).describe(), "GEMM peak 235 GFLOP/s");
  EXPECT_EQ(peak_of({{225e9, 60e9, 90e9, 20e9, 230e9}}).describe(),
            "GEMM peak 230 GFLOP/s (unsure, half of the time below 90: other work on these "
            "cores? No MFU until it is sure)");
}

TEST(GemmPeak, ASlowerStepChangesNothing) {
  auto peak = peak_of({{200e9}});
  peak.observe(200e9);
  EXPECT_EQ(peak.rate(), 200e9);
}

TEST(GemmPeak, IsMeasuredAgainWhenAStepBeatsIt) {
  auto peak = peak_of({{20e9}, {210e9, 220e9}, {190e9}});
  peak.observe(180e9);
  EXPECT_EQ(peak.rate(), 220e9);
  EXPECT_EQ(peak.utilization(110e9), 0.5);
  peak.observe(225e9);
  EXPECT_EQ(peak.rate(), 225e9) << "the step was faster than what was measured";
  EXPECT_EQ(peak.utilization(110e9), std::nullopt);
}

TEST(GemmPeak, IsUnsureWhereItCannotBeMeasuredAgain) {
  auto peak = peak_of({{20e9}, {}});
  peak.observe(180e9);
  EXPECT_EQ(peak.rate(), 180e9);
  EXPECT_EQ(peak.utilization(90e9), std::nullopt);
}

TEST(GemmPeak, IsMeasuredMoreAndMoreRarelyUntilItIsSure) {
  const Rates differ{60e9, 90e9, 230e9}, agree{225e9, 230e9, 240e9};
  auto peak = peak_of({differ, differ, differ, differ, agree});  // at first, after steps 1, 2, 4, 8
  for (int step = 1; step <= 7; ++step) {
    peak.observe(100e9);
    EXPECT_EQ(peak.utilization(120e9), std::nullopt) << "step " << step;
  }
  for (int step = 8; step <= 100; ++step) {
    peak.observe(100e9);
    EXPECT_EQ(peak.utilization(120e9), 0.5) << "step " << step;
  }
}

TEST(GemmPeak, UtilizationIsAtMostOne) {
  const auto peak = peak_of({{200e9}});
  EXPECT_DOUBLE_EQ(peak.utilization(90e9).value_or(-1), 0.45);
  EXPECT_DOUBLE_EQ(peak.utilization(200e9).value_or(-1), 1.0);
  EXPECT_DOUBLE_EQ(peak.utilization(2262e9).value_or(-1), 1.0);
}

TEST(GemmRates, AreTheSameOnAllRanks) {
  const auto rates = measured_gemm_rates(test::world(), DType::f32);
  ASSERT_EQ(rates.size(), 5U);
  for (const double rate : rates) {
    EXPECT_GT(rate, 0);
    const auto texts = test::world().all_gather(fmt::format("{}", rate));
    for (const auto& text : texts) EXPECT_EQ(text, texts.front());
  }
}

}  // namespace
}  // namespace llamesh::train
