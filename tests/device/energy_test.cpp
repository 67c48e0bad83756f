#include "device/energy.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "temporary_folder.hpp"

namespace llamesh::device {
namespace {

namespace fs = std::filesystem;

/// A sysfs of our own, with powercap's folders as Linux has them.
class FakeSysfs : public testing::Test {
 protected:
  const fs::path& root() const { return folder_.path(); }
  void write(const std::string& file, const std::string& text) const {
    const auto path = root() / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  void zone(const std::string& folder, const std::string& name, const std::string& energy) const {
    write("class/powercap/" + folder + "/name", name);
    write("class/powercap/" + folder + "/max_energy_range_uj", "262143328850");
    write("class/powercap/" + folder + "/energy_uj", energy);
  }
  /// Two sockets as on a server: their parts, DRAM, the platform and the MMIO view of socket 0.
  /// Takes as long as 20 J at the largest power that is believed.
  void two_packages(const std::string& first, const std::string& second) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    zone("intel-rapl:0", "package-0", first);
    zone("intel-rapl:0:0", "core", "111");
    zone("intel-rapl:0:1", "dram", "222");
    zone("intel-rapl:1", "package-1", second);
    zone("intel-rapl:1:0", "dram", "333");
    zone("intel-rapl:2", "psys", "444");
    zone("intel-rapl-mmio:0", "package-0", first);
    write("class/powercap/intel-rapl/enabled", "1");
  }

 private:
  test::TemporaryFolder folder_;
};

using Energy = FakeSysfs;

TEST_F(Energy, IsThePackagesAlone) {
  two_packages("1000000", "5000000");
  EnergyMeter meter(true, root());
  EXPECT_EQ(meter.describe(), "RAPL (2 packages)");
  EXPECT_EQ(meter.joules(), 0.0);
  two_packages("3000000", "5500000");
  EXPECT_DOUBLE_EQ(meter.joules().value_or(-1), 2.5);
  EXPECT_EQ(meter.joules(), 0.0) << "since the last reading";
}

TEST_F(Energy, GoesOnWhereACounterWraps) {
  two_packages("262143000000", "0");
  EnergyMeter meter(true, root());
  two_packages("671150", "0");
  EXPECT_NEAR(meter.joules().value_or(-1), 1.0, 1e-9);
  two_packages("1671150", "0");
  EXPECT_NEAR(meter.joules().value_or(-1), 1.0, 1e-9);
}

TEST_F(Energy, IsUnknownWhereACounterJumps) {
  two_packages("800000000000000", "0");
  // With this range, each jump would take the largest power hours.
  write("class/powercap/intel-rapl:0/max_energy_range_uj", "1000000000000000");
  EnergyMeter meter(true, root());
  for (const char* jump : {"1000000000000", "500000000000000", "3000000000000"}) {
    two_packages(jump, "0");
    EXPECT_EQ(meter.joules(), std::nullopt) << jump;
  }
  two_packages("3000001000000", "0");
  EXPECT_NEAR(meter.joules().value_or(-1), 1.0, 1e-9);
}

TEST_F(Energy, DoesNotWaitForAFifo) {
  two_packages("1000000", "5000000");
  const auto counter = root() / "class/powercap/intel-rapl:1/energy_uj";
  fs::remove(counter);
  ASSERT_EQ(mkfifo(counter.c_str(), 0600), 0);
  EXPECT_EQ(EnergyMeter(true, root()).describe(), "");
}

TEST_F(Energy, IsTheWholeNodesOnCray) {
  two_packages("1000000", "5000000");
  write("cray/pm_counters/energy", "1000 J 1467390612345678 us");
  EnergyMeter meter(true, root());
  EXPECT_EQ(meter.describe(), "Cray pm_counters (whole node)");
  two_packages("9000000", "9000000");
  write("cray/pm_counters/energy", "1250 J 1467390712345678 us");
  EXPECT_EQ(meter.joules(), 250.0) << "RAPL is part of it";
  write("cray/pm_counters/energy", "3 J 1467390812345678 us");
  EXPECT_EQ(meter.joules(), std::nullopt) << "reset, and it does not wrap";
  write("cray/pm_counters/energy", "5 J 1467390912345678 us");
  EXPECT_EQ(meter.joules(), 2.0);
}

TEST_F(Energy, IsUnknownWithoutACounter) {
  for (const auto& sysfs : {root(), root() / "absent"}) {
    EnergyMeter meter(true, sysfs);
    EXPECT_EQ(meter.describe(), "");
    EXPECT_EQ(meter.joules(), std::nullopt);
  }
  zone("intel-rapl:0", "psys", "5");  // a platform without packages
  EXPECT_EQ(EnergyMeter(true, root()).joules(), std::nullopt);
}

TEST_F(Energy, IsUnknownIfAPackageIsUnreadable) {
  two_packages("1000000", "5000000");
  for (const char* text : {"", "many", "-5", "12x"}) {
    write("class/powercap/intel-rapl:1/energy_uj", text);
    EnergyMeter meter(true, root());
    EXPECT_EQ(meter.describe(), "") << text;
    EXPECT_EQ(meter.joules(), std::nullopt) << text;
  }
  two_packages("1000000", "5000000");
  EnergyMeter meter(true, root());
  fs::remove(root() / "class/powercap/intel-rapl:1/energy_uj");
  EXPECT_EQ(meter.joules(), std::nullopt) << "gone later";
  two_packages("2000000", "6000000");
  EXPECT_EQ(meter.joules(), 2.0) << "known again";
}

TEST_F(Energy, IsReadByOneProcessOfTheNode) {
  two_packages("1000000", "5000000");
  EnergyMeter other(false, root());
  two_packages("2000000", "6000000");
  EXPECT_EQ(other.joules(), 0.0);
  EXPECT_EQ(other.describe(), "");
}

TEST_F(Energy, LosesOneStepToAGpusResetCounter) {
  two_packages("1000000", "5000000");
  std::optional<std::uint64_t> millijoules = 70000;
  EnergyMeter meter(true, root(), [&] { return millijoules; });
  EXPECT_EQ(meter.describe(), "RAPL (2 packages) and NVML (each GPU)");
  millijoules = 71500;
  two_packages("2000000", "5000000");
  EXPECT_DOUBLE_EQ(meter.joules().value_or(-1), 2.5);
  millijoules = 200;
  two_packages("9000000", "5000000");
  EXPECT_EQ(meter.joules(), std::nullopt) << "reset";
  millijoules = 700;
  two_packages("9000000", "6000000");
  EXPECT_DOUBLE_EQ(meter.joules().value_or(-1), 1.5) << "of this step alone";
  millijoules.reset();
  EXPECT_EQ(meter.joules(), std::nullopt) << "unreadable";
  millijoules = 1200;
  EXPECT_DOUBLE_EQ(meter.joules().value_or(-1), 0.5) << "of both steps";
}

TEST_F(Energy, IsUnknownOfAGpuWithoutACounter) {
  two_packages("1000000", "5000000");
  EnergyMeter meter(true, root(), [] { return std::optional<std::uint64_t>(); });
  EXPECT_EQ(meter.describe(), "RAPL (2 packages)");
  EXPECT_EQ(meter.joules(), std::nullopt);
}

TEST(GpuEnergy, IsUnknownOfAGpuThatDoesNotExist) {
  EXPECT_EQ(gpu_energy("FFFF:FF:FF.0"), std::nullopt);
}

}  // namespace
}  // namespace llamesh::device
