#include "device/utilization.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "core/clock.hpp"

namespace llamesh::device {
namespace {

/// Computes until this process has used that much CPU time.
void compute_for(std::clock_t ticks) {
  const auto start = std::clock();
  while (std::clock() - start < ticks) continue;
}

TEST(UtilizationMeter, IsTheShareOfItsThreads) {
  const auto begin = std::chrono::steady_clock::now();
  UtilizationMeter one(1), four(4);
  compute_for(CLOCKS_PER_SEC / 10);
  const auto of_one = one.share().value(), of_four = four.share().value();
  EXPECT_LE(of_one, 1);
  EXPECT_GE(of_one, 0.08 / seconds_since(begin));  // others may have taken the rest of the time
  EXPECT_NEAR(of_four, of_one / 4, 0.05);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(one.share().value(), 0.5);
}

}  // namespace
}  // namespace llamesh::device
