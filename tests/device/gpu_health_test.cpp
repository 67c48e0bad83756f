#include "device/gpu_health.hpp"

#include <gtest/gtest.h>

#include "device/energy.hpp"
#include "device/utilization.hpp"

namespace llamesh::device {
namespace {

// Uses the fake NVML (fake_nvml.cpp), which CMakeLists.txt puts before a real one.
TEST(GpuHealth, IsWhatNvmlReports) {
  EXPECT_EQ(gpu_health("0000:01:00.0"),
            (GpuHealth{.uncorrected_errors = 0, .clocks_held_down = false, .nvlinks = 18}));
  EXPECT_EQ(gpu_health("0000:02:00.0"),
            (GpuHealth{.uncorrected_errors = 5, .clocks_held_down = true, .nvlinks = 16}));
}

TEST(GpuHealth, IsEmptyWhereTheDriverReportsNothing) {
  EXPECT_EQ(gpu_health("0000:03:00.0"), GpuHealth());
  EXPECT_EQ(gpu_health("0000:09:00.0"), std::nullopt);
}

TEST(GpuHealth, ReadsTheEnergyCounterOfTheSameLibrary) {
  EXPECT_EQ(gpu_energy("0000:01:00.0"), 1234U);
  EXPECT_EQ(gpu_energy("0000:03:00.0"), std::nullopt);
}

TEST(GpuHealth, ReadsTheUtilizationOfTheSameLibrary) {
  EXPECT_EQ(gpu_utilization("0000:01:00.0"), 0.85);
  EXPECT_EQ(gpu_utilization("0000:03:00.0"), std::nullopt);
}

}  // namespace
}  // namespace llamesh::device
