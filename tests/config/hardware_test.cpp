#include "config/hardware.hpp"

#include <gtest/gtest.h>

#include "core/file.hpp"
#include "source_file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::config {
namespace {

std::string built_in(const std::string& name) {
  return read_file(test::source_file("inputs/hardware/") + name + ".yaml", 1 << 20);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(Hardware, EveryBuiltInOneHasAllRates) {
  EXPECT_EQ(built_in_hardware().size(), 5U);
  for (const auto& name : built_in_hardware()) {
    const auto hardware = load_hardware(name);
    EXPECT_GT(hardware.peak(DType::bf16), hardware.peak(DType::f32)) << name;
    EXPECT_GT(hardware.within_node.bandwidth, hardware.between_nodes.bandwidth) << name;
    EXPECT_EQ(hardware.kind, name == "cpu-node" ? device::Kind::cpu : device::Kind::cuda);
  }
}

TEST(Hardware, AFileIsReadLikeABuiltInOne) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("own.yaml", replaced(built_in("h100"), "989e12", "500e12"));
  EXPECT_EQ(load_hardware(file).peak_bf16, 500e12);
  EXPECT_EQ(load_hardware(file).peak_fp32, load_hardware("h100").peak_fp32);
}

TEST(Hardware, MissingAndZeroRatesAreErrorsWithTheirNames) {
  const test::TemporaryFolder folder;
  const auto error = [&](const std::string& text) {
    const auto file = folder.write("bad.yaml", text);
    auto message = test::error_of([&] { load_hardware(file); });
    EXPECT_EQ(message.find('\n'), message.npos);
    return message;
  };
  const auto good = built_in("h100");
  EXPECT_NE(error(replaced(good, "fp32: 67e12", "")).find("peak.fp32 is missing"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "48.5e9", "0")).find("between_nodes.bandwidth"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "370.8e9", "-1")).find("within_node.bandwidth"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "latency: 14e-6", "latency: -1e-6")).find("between_nodes.latency"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "bytes: 85.0e9", "bytes: many")).find("memory.bytes"),
            std::string::npos);
  EXPECT_NE(error("").find("memory.bytes is missing"), std::string::npos);
  EXPECT_NE(error(replaced(good, "bytes: 85.0e9", "bytes: 0"))
                .find("memory.bytes is 0; it must be positive"),
            std::string::npos);
  EXPECT_NE(error("name: \"two\\nlines\"\n").find("name: 'two\\x0alines' contains a newline"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "gemm: 0.80", "gemm: 1.2")).find("attainable.gemm"),
            std::string::npos);
  for (const char* rate : {"1e-300", "1e308", "nan", "inf"})
    EXPECT_NE(error(replaced(good, "48.5e9", rate)).find("between_nodes.bandwidth"),
              std::string::npos);
  EXPECT_NE(error(replaced(good, "gemm: 0.80", "gemm: 1e-300")).find("attainable.gemm"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "latency: 14e-6", "latency: 1e308")).find("between_nodes.latency"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "kind: cuda", "kind: rocm")).find("kind is rocm"),
            std::string::npos);
  EXPECT_NE(error(replaced(good, "launch:", "lunch:")).find("lunch"), std::string::npos);
  EXPECT_NE(test::error_of([] { load_hardware("h20"); }).find("did you mean 'h200'"),
            std::string::npos);
}

/// Returns measured rates with round numbers.
device::Hardware measured() {
  auto hardware = load_hardware("cpu-node");
  hardware.name = "2 ranks";
  auto& rates = hardware.measured;
  rates.ranks = 2;
  rates.disk = 4e8;
  rates.kernels[DType::f32]["linear"].points = {{16, 1e10}, {512, 2e11}};
  rates.kernels[DType::bf16]["adamw"].points = {{1024, 1.5e10}};
  rates.within_node[DType::f32]["all-gather"].points = {{65536, 5e9}};
  rates.between_nodes[DType::bf16]["reduce-scatter"].points = {{65536, 2e9}, {1e7, 3e9}};
  return hardware;
}

TEST(Hardware, AMeasuredFileReadsBackAsWritten) {
  const test::TemporaryFolder folder;
  const auto written = measured();
  const auto read = load_hardware(folder.write("measured.yaml", hardware_text(written)));
  EXPECT_EQ(read.name, written.name);
  EXPECT_EQ(read.threads, written.threads);
  EXPECT_EQ(read.memory_bandwidth, written.memory_bandwidth);
  EXPECT_EQ(read.peak_bf16, written.peak_bf16);
  EXPECT_EQ(read.between_nodes.latency, written.between_nodes.latency);
  EXPECT_EQ(read.measured.ranks, 2);
  EXPECT_EQ(read.measured.disk, 4e8);
  const auto points = [](const std::map<DType, device::RateTables>& tables) {
    std::map<std::string, std::vector<std::pair<double, double>>> all;
    for (const auto& [dtype, by_name] : tables)
      for (const auto& [name, table] : by_name)
        all[std::string(name_of(dtype)) + ' ' + name] = table.points;
    return all;
  };
  EXPECT_EQ(points(read.measured.kernels), points(written.measured.kernels));
  EXPECT_EQ(points(read.measured.within_node), points(written.measured.within_node));
  EXPECT_EQ(points(read.measured.between_nodes), points(written.measured.between_nodes));
  EXPECT_FALSE(load_hardware("cpu-node").is_measured());
}

TEST(Hardware, BadTablesAreErrorsWithTheirKeyAndLine) {
  const test::TemporaryFolder folder;
  const auto good = hardware_text(measured());
  const auto error = [&](const std::string& what, const std::string& by) {
    const auto file = folder.write("bad.yaml", replaced(good, what, by));
    const auto message = test::error_of([&] { load_hardware(file); });
    EXPECT_EQ(message.find('\n'), message.npos);
    return message;
  };
  const std::string table = "[[16, 1e+10], [512, 2e+11]]";
  for (const char* bad : {"[[512, 1e+10], [16, 2e+11]]", "[[16, 1e+10], [16, 2e+11]]", "[[16, 0]]",
                          "[[16, -1]]", "[[16, 1e300]]", "[[16, nan]]", "[[0, 1e10]]",
                          "[[16, 1e10, 3]]", "[16, 1e10]", "[]", "5"}) {
    const auto message = error(table, bad);
    EXPECT_NE(message.find("measured.kernels.fp32.linear: "), message.npos) << bad << message;
    EXPECT_NE(message.find("bad.yaml:"), message.npos) << bad << message;
  }
  EXPECT_NE(error(table, "[[512, 1e+10], [16, 2e+11]]").find("16 follows 512; sizes must ascend"),
            std::string::npos);
  EXPECT_NE(error("linear:", "liner:").find("measured.kernels.fp32.liner"), std::string::npos);
  EXPECT_NE(error("ranks: 2", "ranks: 0").find("measured.ranks"), std::string::npos);
  const auto on_gpu = folder.write("gpu.yaml", built_in("h100") + "measured: {ranks: 8}\n");
  EXPECT_NE(test::error_of([&] { load_hardware(on_gpu); }).find("are for kind: cpu"),
            std::string::npos);
  EXPECT_NE(error("ranks: 2", "").find("measured.ranks is missing"), std::string::npos);
}

TEST(Hardware, TheSharesThatRunsAttainAreOneForAllGpus) {
  for (const auto& name : built_in_hardware())
    EXPECT_EQ(load_hardware(name).attained,
              name == "cpu-node" ? 0 : load_hardware("h100").attained);
  EXPECT_GT(load_hardware("h100").attained, 0.5);
}

}  // namespace
}  // namespace llamesh::config
