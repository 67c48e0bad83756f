#include "core/log.hpp"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>

namespace llamesh {
namespace {

/// What is logged while three steps of some work are done.
std::string logged(std::chrono::milliseconds interval, std::int64_t total) {
  std::ostringstream out;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out)));
  spdlog::default_logger()->set_pattern("%v");
  ProgressLog progress("units", total, interval);
  for (int i = 0; i < 3; ++i) progress.step();
  spdlog::set_default_logger(before);
  return out.str();
}

TEST(ProgressLog, SaysHowFarItIsWhenTheIntervalHasPassed) {
  using namespace std::chrono_literals;
  EXPECT_EQ(logged(1h, 3), "");
  EXPECT_NE(logged(0ms, 3).find("units: 2 of 3 after "), std::string::npos);
  EXPECT_NE(logged(0ms, 0).find("units: 3 after "), std::string::npos);
}

}  // namespace
}  // namespace llamesh
