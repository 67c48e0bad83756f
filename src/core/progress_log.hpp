#pragma once

#include <chrono>
#include <cstdint>
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

}  // namespace llamesh
