#include "core/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

#include "core/process.hpp"

namespace llamesh {
namespace {

/// Where the log goes to: one more place can be added while other threads log.
const std::shared_ptr<spdlog::sinks::dist_sink_mt>& places() {
  static const auto sink = std::make_shared<spdlog::sinks::dist_sink_mt>();
  return sink;
}

/// Writes to the log file alone; empty without one.
std::shared_ptr<spdlog::logger>& file_logger() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}

}  // namespace

void setup_logging() {
  const auto& self = this_process();
  places()->set_sinks({std::make_shared<spdlog::sinks::stderr_sink_mt>()});
  auto logger = std::make_shared<spdlog::logger>("llamesh", places());
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
  file_logger() = std::make_shared<spdlog::logger>("file", sink);
  file_logger()->flush_on(spdlog::level::info);
  places()->add_sink(std::move(sink));
}

void log_to_file_only(const std::string& line) {
  if (file_logger()) file_logger()->info("{}", line);
}

}  // namespace llamesh
