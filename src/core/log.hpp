#pragma once

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

namespace llamesh {

/// Logs how far a long piece of work has come, every few seconds.
class ProgressLog {
 public:
  /// "<what>: 12 of 126 after 5 s"; `total` 0: unknown, and not shown.
  explicit ProgressLog(std::string what, std::int64_t total = 0,
                       std::chrono::milliseconds interval = std::chrono::seconds(5))
      : what_(std::move(what)), total_(total), interval_(interval) {}
  /// One more is done.
  void step();

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  std::int64_t total_;
  std::chrono::milliseconds interval_;
  std::int64_t done_ = 0;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

/// Sets up spdlog for this process, with a timestamp, and the rank if it is not 0. Rank 0 logs from
/// info up, other ranks from warning up, so a message common to all ranks appears once.
void setup_logging();

/// Also appends the log to a file (rank 0 uses runs/<name>/log.txt). If the file's first line is
/// not from a llamesh log, quarantines it with a warning and starts a new one.
void log_to_file(const std::filesystem::path& path);

/// Also appends this rank's log, from info up, to its own file. Elsewhere a rank other than 0 logs
/// from warning up.
void log_rank_to_file(const std::filesystem::path& path);

/// Appends a line to such a file, which another process may have open.
void append_to_log(const std::filesystem::path& path, const std::string& line);

/// Logs a line to the file only, for text that the terminal shows in another form. Does nothing
/// without a file.
void log_to_file_only(const std::string& line);

}  // namespace llamesh
