#include "train/health/nonfinite_steps.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

class NonfiniteStepsTest : public testing::Test {
 protected:
  using Parts = std::array<double, 6>;
  static constexpr Parts good = {1, 1, 1, 1, 1, 1};

  static std::vector<std::string> hosts() { return {"n1", "n1", "n1", "n2", "n2", "n2"}; }
  std::string skip(const Parts& losses = good, const Parts& norms = good) {
    return steps_.on_nonfinite(7, nan, infinity, losses, norms);
  }
  /// Returns the error from a step that ends the run.
  template <class Action>
  static std::string end_by(Action action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::no_progress);
      return error.what();
    }
    return "";
  }
  NonfiniteSteps steps_{OnNonfinite::skip, hosts()};
};

TEST_F(NonfiniteStepsTest, NameTheRankWhoseLossIsNotFinite) {
  auto losses = good;
  losses[4] = nan;
  EXPECT_EQ(
      skip(losses, {nan, nan, nan, nan, nan, nan}),
      "step 7: loss nan, gradient norm inf (the loss is not finite on 1 of 6 ranks: rank 4 on "
      "n2): the step is skipped, without an update (1 in a row, 1 since the start; the run stops "
      "at 10 in a row)");
}

TEST_F(NonfiniteStepsTest, NameFourRanksAndTellOfTheGradientWhereTheLossesAreFinite) {
  const auto line = skip(good, {nan, infinity, 1, nan, nan, nan});
  EXPECT_NE(line.find("(the gradient is not finite on 5 of 6 ranks: rank 0 on n1, rank 1 on n1, "
                      "rank 3 on n2, rank 4 on n2, ...)"),
            line.npos)
      << line;
  EXPECT_NE(skip().find("gradient norm inf: the step"), line.npos);  // the sum overflowed
}

TEST_F(NonfiniteStepsTest, TheFirstRankOfThemReports) {
  const std::vector<double> two{1, 1, nan, infinity};
  const std::vector<double> last{1, 1, 1, nan};
  const std::vector<double> all{1, 1, 1, 1};
  EXPECT_EQ(NonfiniteSteps::first_rank(two, last), 2);
  EXPECT_EQ(NonfiniteSteps::first_rank(all, last), 3);
  EXPECT_EQ(NonfiniteSteps::first_rank(all, all), 0);  // a sum overflowed
}

TEST_F(NonfiniteStepsTest, EndTheRunAtTheTenthInARow) {
  const auto nine = [&] {
    for (int i = 0; i < 9; ++i) skip();
  };
  nine();
  steps_.on_finite();
  nine();
  EXPECT_EQ(end_by([&] { skip(); }),
            "step 7: loss nan, gradient norm inf: the last 10 steps made no update, the run "
            "diverged; lower optimizer.lr or lengthen schedule.warmup_steps");
}

TEST_F(NonfiniteStepsTest, AreCountedSinceTheStart) {
  skip();
  steps_.on_finite();
  const auto line = skip();
  EXPECT_NE(line.find("(1 in a row, 2 since the start"), line.npos) << line;
}

TEST_F(NonfiniteStepsTest, EndTheRunAtOnceWhereNoneIsSkipped) {
  NonfiniteSteps steps(OnNonfinite::stop, hosts());
  auto losses = good;
  losses[0] = infinity;
  EXPECT_EQ(end_by([&] { steps.on_nonfinite(7, infinity, nan, losses, good); }),
            "step 7: loss inf, gradient norm nan (the loss is not finite on 1 of 6 ranks: rank 0 "
            "on n1): the run diverged; lower optimizer.lr or lengthen schedule.warmup_steps");
  const auto first = end_by([&] { steps.on_nonfinite(1, infinity, nan, losses, good); });
  EXPECT_NE(first.find("no update was made before: the weights that the run begins with"),
            first.npos)
      << first;
}

/// A fault of a machine spreads to all ranks, and no learning rate helps against it.
TEST(NonfiniteSteps, NameTheFaultThatHasComeBack) {
  NonfiniteSteps steps(OnNonfinite::stop, {"n1", "n2"});
  std::string line;
  try {
    steps.on_nonfinite(7, nan, nan, std::array{nan, nan}, std::array{nan, nan},
                       "passes were computed again twice");
  } catch (const Error& error) {
    line = error.what();
  }
  EXPECT_EQ(
      line,
      "step 7: loss nan, gradient norm nan (passes were computed again twice): a processor or "
      "memory is likely to be faulty; start the run again without that node");
}

}  // namespace
}  // namespace llamesh::train
