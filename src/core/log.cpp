#include "core/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "core/process.hpp"

namespace llamesh {

void setup_logging() {
  const auto& self = this_process();
  auto logger = std::make_shared<spdlog::logger>("llamesh",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(self.rank == 0 ? spdlog::level::info : spdlog::level::warn);
  logger->set_pattern(self.rank == 0
                          ? "%H:%M:%S %v"
                          : fmt::format("%H:%M:%S rank {} on {}: %v", self.rank, self.host));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void log_to_file(const std::string& path) {
  auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
  sink->set_pattern("%Y-%m-%d %H:%M:%S %v");
  spdlog::default_logger()->sinks().push_back(std::move(sink));
}

}  // namespace llamesh
