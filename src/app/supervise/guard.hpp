#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/supervise/child.hpp"
#include "core/slurm/slurm_job.hpp"

namespace llamesh::app {

/// Job steps on other nodes that watch the batch node (SlurmJob::guard_command). One of them may be
/// lost together with it.
class Guard {
 public:
  /// Borrows `job`.
  explicit Guard(const SlurmJob& job) : job_(job) {}

  /// Moves the steps to these nodes, unless that is where they are.
  void place_on(const std::vector<std::string>& nodes);
  /// Starts the steps that are not running, each at most every 30 s. If that fails, the run
  /// continues without them.
  void keep();

 private:
  using Clock = std::chrono::steady_clock;

  struct Step {
    std::string node;
    std::unique_ptr<Child> process = {};
    std::optional<Clock::time_point> started = {};  ///< latest try
  };
  void keep(Step& step);

  const SlurmJob& job_;
  std::vector<Step> steps_;
  bool warned_ = false;
};

}  // namespace llamesh::app
