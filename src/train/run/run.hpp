#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/diagnosis/watchdog.hpp"
#include "core/error.hpp"
#include "train/job/startup.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Callback that lists the differences between two resolved inputs, one text per key.
using ConfigChanges =
    std::function<std::vector<std::string>(const std::string& before, const std::string& now)>;

/// Outcome of a run.
struct RunEnd {
  ExitCode code = ExitCode::done;  ///< done, or stopped_early with a checkpoint
  std::int64_t step = 0;           ///< last completed step
  double seconds = 0;              ///< wall-clock time of this launch
  std::optional<double> loss;      ///< at the last step; empty: this launch has done none
  bool nothing_to_do = false;      ///< the run was done before; the log says so
};

/// Executes a whole run: opens the run folder, resumes from the newest good checkpoint, trains to
/// the last step or until asked to stop (job/deadline.hpp), and evaluates, saves and reports in
/// between. `config` is the resolved inputs as YAML, stored in the run folder and in every
/// checkpoint; if it differs from the checkpoint's, `changes` lists the differences for the log.
/// `watchdog` comes from watch_over() (job/watch.hpp). Collective.
RunEnd run(const comm::Communicator& world, const Setup& setup, const std::string& config,
           Startup startup, comm::Watchdog& watchdog, const ConfigChanges& changes = {});

}  // namespace llamesh::train
