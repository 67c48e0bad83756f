#include "device/host_memory.hpp"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "device/device.hpp"

namespace llamesh::device {
namespace {

namespace fs = std::filesystem;

int policy() {
  int policy = -1;
  syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0);
  return policy;
}

/// A folder like sysfs' or procfs'.
class NumaTest : public testing::Test {
 protected:
  NumaTest() : folder_(fs::temp_directory_path() / ("llamesh-numa-" + std::to_string(getpid()))) {
    fs::create_directories(folder_ / "0000:1b:00.0");
  }
  ~NumaTest() override { fs::remove_all(folder_); }
  std::string folder() const { return folder_.string(); }

 private:
  fs::path folder_;
};

TEST_F(NumaTest, NodeOfADevice) {
  EXPECT_EQ(numa_node_of("0000:1B:00.0", folder()), -1);
  std::ofstream(folder() + "/0000:1b:00.0/numa_node") << "3\n";
  EXPECT_EQ(numa_node_of("0000:1B:00.0", folder()), 3);
  EXPECT_EQ(numa_node_of("0000:1C:00.0", folder()), -1);
}

TEST_F(NumaTest, NodeOfProcessors) {
  EXPECT_EQ(node_of_processors({0}, folder() + "/absent"), -1);
  for (const auto& [node, list] : {std::pair("node0", "0-3,8-11\n"), {"node1", "4-7,12\n"}}) {
    fs::create_directories(fs::path(folder()) / node);
    std::ofstream(fs::path(folder()) / node / "cpulist") << list;
  }
  EXPECT_EQ(node_of_processors({0, 9, 11}, folder()), 0);
  EXPECT_EQ(node_of_processors({12}, folder()), 1);
  EXPECT_EQ(node_of_processors({3, 4}, folder()), -1);
  EXPECT_EQ(node_of_processors({12, 13}, folder()), -1);
  EXPECT_EQ(node_of_processors({40}, folder()), -1);
  EXPECT_FALSE(own_processors().empty());
}

TEST(GpusOfRanks, AreOnTheSocketOfTheirProcessors) {
  using Gpus = std::vector<int>;
  EXPECT_EQ(gpus_of_ranks({0, 0, 1, 1}, {0, 0, 1, 1}), (Gpus{0, 1, 2, 3}));
  EXPECT_EQ(gpus_of_ranks({0, 1, 0, 1}, {0, 0, 1, 1}), (Gpus{0, 2, 1, 3}));  // block:cyclic
  EXPECT_EQ(gpus_of_ranks({1, 0}, {0, 0, 1, 1}), (Gpus{2, 0}));
  EXPECT_EQ(gpus_of_ranks({1, 1, 1}, {0, 0, 1, 1}), (Gpus{2, 3, 0}));
  EXPECT_EQ(gpus_of_ranks({-1, 1, -1}, {0, 1, -1}), (Gpus{0, 1, 2}));
  EXPECT_EQ(gpus_of_ranks({-1, -1}, {-1, -1}), (Gpus{0, 1}));
  EXPECT_EQ(gpus_of_ranks({1, 0, 0}, {0, 1}), (Gpus{0, 1, 0}));  // sharing, in turn
}

TEST_F(NumaTest, PolicyWithinTheScope) {
  if (policy() != MPOL_DEFAULT)
    GTEST_SKIP() << "this thread has a memory policy, or none can be read";
  {
    const PreferNumaNode scope(-1);
    EXPECT_EQ(policy(), MPOL_DEFAULT);
  }
  {
    const PreferNumaNode scope(0);
    if (policy() == MPOL_DEFAULT) GTEST_SKIP() << "the kernel refuses memory policies here";
    EXPECT_EQ(policy(), MPOL_PREFERRED);
    const PreferNumaNode within(0);  // leaves the policy to the scope outside
  }
  EXPECT_EQ(policy(), MPOL_DEFAULT);
}

TEST_F(NumaTest, InstalledGpusAreEntriesOfAFolder) {
  EXPECT_EQ(installed_gpus((folder() + "/none").c_str()), 0);
  EXPECT_EQ(installed_gpus(folder().c_str()), 1);
}

}  // namespace
}  // namespace llamesh::device
