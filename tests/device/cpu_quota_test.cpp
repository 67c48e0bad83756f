#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "device/device.hpp"
#include "temporary_folder.hpp"

namespace llamesh::device {
namespace {

TEST(CpuQuota, IsTheSmallestOfACgroupAndThoseAboveIt) {
  const test::TemporaryFolder root;
  std::filesystem::create_directories(root.path() / "job" / "step" / "task");
  const auto quota = [&](const char* group) { return cpu_quota(root.path().string(), group); };
  constexpr double none = std::numeric_limits<double>::infinity();
  EXPECT_EQ(quota(""), none);
  EXPECT_EQ(quota("/"), none);
  EXPECT_EQ(quota("/job/step/task"), none);
  root.write("job/step/cpu.max", "5000 100000\n");
  root.write("job/step/task/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("/job/step/task"), 0.05);
  EXPECT_EQ(quota("/job/step"), 0.05);
  EXPECT_EQ(quota("/job"), none);
  root.write("cpu.max", "400000 100000\n");
  EXPECT_EQ(quota("/job/step/task"), 0.05);
  EXPECT_EQ(quota("/"), 4);
  root.write("job/step/cpu.max", "nonsense\n");
  EXPECT_EQ(quota("/job/step/task"), 4);
}

}  // namespace
}  // namespace llamesh::device
