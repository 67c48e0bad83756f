#include "config/hardware.hpp"

#include <gtest/gtest.h>

#include "core/file.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::config {
namespace {

std::string built_in(const std::string& name) {
  return read_file(std::string(LLAMESH_INPUTS) + "/hardware/" + name + ".yaml", 1 << 20);
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

}  // namespace
}  // namespace llamesh::config
