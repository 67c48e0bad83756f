#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "train/job/walltime.hpp"

namespace llamesh::train {

/// Why a run ends before its last step; the greatest is reported when there are several.
enum class Stop : std::int64_t {
  no,
  halt_file,
  walltime,
  broken_pipe,
  hangup,
  interrupt,
  user_signal,
  terminate
};

/// "SIGTERM", "the file runs/tiny/halt", ...
std::string describe(Stop reason, const std::filesystem::path& run_folder);

/// The time to reserve before the end of the walltime, in seconds: a save may take twice as long as
/// the slowest one so far, a step is in progress, and Slurm may signal a minute early.
double lead_time(double save_seconds, double step_seconds);

/// Detects requests to end the run: a signal to any rank (core/stop_signals.hpp), a file `halt` in
/// the run folder and the end of the job's walltime (both seen by rank 0).
class Deadline {
 public:
  /// `watches`: whether this rank looks at the folder and at the clock.
  Deadline(std::filesystem::path run_folder, bool watches);

  /// The request that this rank sees. Local: the maximum over the ranks counts.
  Stop asked(double save_seconds, double step_seconds);
  /// Seconds until the job is ended, where that is known.
  std::optional<double> seconds_left(std::chrono::milliseconds timeout = {});

  /// Whether SIGTERM was received. Any thread.
  static bool termination_asked();

  static std::filesystem::path halt_file(const std::filesystem::path& run_folder);

 private:
  bool halt_file_is_there();

  std::filesystem::path run_folder_;
  bool watches_;
  std::optional<Walltime> walltime_;
  Walltime::Clock::time_point looked_{};  ///< when the halt file was last checked
};

}  // namespace llamesh::train
