#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "app/supervise/child.hpp"
#include "app/supervise/slurm_job.hpp"

namespace llamesh::app {

/// Job step on another node that watches the batch node (SlurmJob::guard_command).
class Guard {
 public:
  /// Borrows `job`.
  explicit Guard(const SlurmJob& job) : job_(job) {}

  /// Moves the step to the last of these nodes unless it is on one of them. Ends it if there are
  /// none.
  void place_on(const std::vector<std::string>& nodes);
  /// Starts the step if it is not running, at most every 30 s. If that fails, the run continues
  /// without it.
  void keep();

 private:
  using Clock = std::chrono::steady_clock;

  const SlurmJob& job_;
  std::optional<Child> step_;
  std::string node_;                          ///< empty: there is no other node
  std::optional<Clock::time_point> started_;  ///< when it was last started on that node
  bool warned_ = false;
};

}  // namespace llamesh::app
