#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "train/job/walltime.hpp"

namespace llamesh::train {

/// Why a run ends before its last step; the greater one is told when there are several.
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

/// What has to be free before the end of the walltime: a save may take twice as long as the slowest
/// one so far, a step is under way, and Slurm may signal a minute early. Seconds.
double lead_time(double save_seconds, double step_seconds);

/// Knows what asks the run to end: a signal to any rank (core/stop_signals.hpp), a file `halt` in
/// the run folder and the end of the job's walltime (both seen by rank 0).
class Deadline {
 public:
  /// `watches`: whether this rank looks at the folder and at the clock.
  Deadline(std::filesystem::path run_folder, bool watches);

  /// What this rank knows of. Local: the ranks have to agree on the greatest.
  Stop asked(double save_seconds, double step_seconds);
  /// Seconds until the job is ended, where that is known.
  std::optional<double> seconds_left(std::chrono::milliseconds patience = {});

  /// Whether SIGTERM has come. Any thread.
  static bool termination_asked();

  static std::filesystem::path halt_file(const std::filesystem::path& run_folder);

 private:
  bool halt_file_is_there();

  std::filesystem::path run_folder_;
  bool watches_;
  std::optional<Walltime> walltime_;
  Walltime::Clock::time_point looked_{};  ///< for the halt file
};

}  // namespace llamesh::train
