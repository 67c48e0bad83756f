#include "core/log.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "core/clock.hpp"
#include "core/file.hpp"
#include "core/process.hpp"
#include "core/terminal_line.hpp"

namespace llamesh {

void ProgressLog::step() {
  ++done_;
  const auto now = Clock::now();
  if (now - shown_ < interval_) return;
  shown_ = now;
  spdlog::info("{}: {}{} after {:.0f} s", what_, done_,
               total_ > 0 ? fmt::format(" of {}", total_) : "", seconds_since(start_));
}

namespace {

/// Returns the log destinations. Others can be added while other threads log.
const std::shared_ptr<spdlog::sinks::dist_sink_mt>& places() {
  static const auto sink = std::make_shared<spdlog::sinks::dist_sink_mt>();
  return sink;
}

/// Returns the logger for the file only; empty without one.
std::shared_ptr<spdlog::logger>& file_logger() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}

class TerminalSink final : public spdlog::sinks::stderr_sink_mt {
 public:
  void log(const spdlog::details::log_msg& message) override {
    const AboveTerminalLine above;
    spdlog::sinks::stderr_sink_mt::log(message);
  }
};

/// Sink that writes each line at once, to a file opened as in core/file.hpp. Gives up a file that
/// can no longer be written.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(Descriptor file) : file_(std::move(file)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    if (!file_) return;
    try {
      file_->append({text.data(), text.size()});
    } catch (const Error& error) {
      file_.reset();
      const AboveTerminalLine above;
      fmt::print(stderr, "{}; nothing more goes into this log\n", error.what());
    }
  }
  void flush_() override {}

  std::optional<Descriptor> file_;
};

/// Returns true if the file is empty or starts with a timestamp as log_to_file() writes it. A
/// truncated first line is compared as far as it goes.
bool is_own_log(const Descriptor& file) {
  constexpr std::string_view pattern = "0000-00-00 00:00:00 ";
  std::array<char, pattern.size()> begin{};
  const auto count = file.read_some(0, begin.data(), std::ssize(begin));
  return std::equal(begin.begin(), begin.begin() + count, pattern.begin(), [](char c, char p) {
    return p == '0' ? std::isdigit(static_cast<unsigned char>(c)) != 0 : c == p;
  });
}

/// Adds the file to the log destinations.
std::shared_ptr<FileSink> add_file(const std::filesystem::path& path) {
  const auto open = [&] { return Descriptor::to_write(path, O_RDWR | O_CREAT | O_APPEND); };
  auto file = open();
  if (!is_own_log(file)) {
    spdlog::warn("{} is not a log of llamesh: it is now {}", path.string(),
                 quarantine(path, path).filename().string());
    file = open();
  }
  auto sink = std::make_shared<FileSink>(std::move(file));
  sink->set_pattern("%Y-%m-%d %H:%M:%S %v");
  places()->add_sink(sink);
  return sink;
}

/// Returns the local time. fmt::localtime() is gone since fmt 12.
std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

}  // namespace

void setup_logging() {
  const auto& self = this_process();
  const auto level = self.rank == 0 ? spdlog::level::info : spdlog::level::warn;
  auto terminal = std::make_shared<TerminalSink>();
  terminal->set_level(level);
  places()->set_sinks({std::move(terminal)});
  auto logger = std::make_shared<spdlog::logger>("llamesh", places());
  logger->set_level(level);
  logger->set_pattern(self.rank == 0
                          ? "%H:%M:%S %v"
                          : fmt::format("%H:%M:%S rank {} on {}: %v", self.rank, self.host));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void log_to_file(const std::filesystem::path& path) {
  file_logger() = std::make_shared<spdlog::logger>("file", add_file(path));
  file_logger()->flush_on(spdlog::level::info);
}

void log_rank_to_file(const std::filesystem::path& path) {
  add_file(path);
  spdlog::default_logger()->set_level(spdlog::level::info);
}

void append_to_log(const std::filesystem::path& path, const std::string& line) {
  Descriptor::to_write(path, O_RDWR | O_APPEND)
      .append(fmt::format("{:%Y-%m-%d %H:%M:%S} {}\n", local_time(), line));
}

void log_to_file_only(const std::string& line) {
  if (file_logger()) file_logger()->info("{}", line);
}

}  // namespace llamesh
