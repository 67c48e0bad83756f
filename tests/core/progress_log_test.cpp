#include "core/log.hpp"

#include <gtest/gtest.h>

#include "captured_log.hpp"

namespace llamesh {
namespace {

/// Returns the lines that three steps in some work log.
std::string logged(std::chrono::milliseconds interval, std::int64_t total) {
  const test::CapturedLog log;
  ProgressLog progress("units", total, interval);
  for (int i = 0; i < 3; ++i) progress.step();
  return log.text();
}

TEST(ProgressLog, SaysHowFarItIsWhenTheIntervalHasPassed) {
  using namespace std::chrono_literals;
  EXPECT_EQ(logged(1h, 3), "");
  EXPECT_NE(logged(0ms, 3).find("units: 2 of 3 after "), std::string::npos);
  EXPECT_NE(logged(0ms, 0).find("units: 3 after "), std::string::npos);
}

}  // namespace
}  // namespace llamesh
