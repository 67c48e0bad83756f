#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/watchdog.hpp"
#include "core/error.hpp"
#include "train/job/startup.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// The differences between two resolved inputs, one text for each key.
using ConfigChanges =
    std::function<std::vector<std::string>(const std::string& before, const std::string& now)>;

/// How a run ended.
struct RunEnd {
  ExitCode code = ExitCode::done;  ///< done, or stopped_early with a checkpoint
  std::int64_t step = 0;           ///< the last one done
  double seconds = 0;              ///< wall-clock time of this start
  std::optional<double> loss;      ///< of the last step; empty: this start has done none
};

/// A whole run: opens the run folder, resumes from the newest good checkpoint, trains to the last
/// step or until it is asked to stop (job/deadline.hpp), and evaluates, saves and reports in
/// between. `config` is the resolved inputs as YAML, kept in the run folder and in every
/// checkpoint; where it differs from the checkpoint's, `changes` lists the differences for the log.
/// `watchdog` is that of watch_over() (job/watch.hpp). Collective.
RunEnd run(const comm::Communicator& world, const Setup& setup, const std::string& config,
           Startup startup, comm::Watchdog& watchdog, const ConfigChanges& changes = {});

}  // namespace llamesh::train
