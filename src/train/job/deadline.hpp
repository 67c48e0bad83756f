#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "comm/mpi/communicator.hpp"
#include "train/setup/walltime.hpp"

namespace llamesh::train {

/// Reasons to end a run before its last step; with several, the greatest is reported.
enum class Stop : std::int64_t {
  no,
  halt_file,
  walltime,
  broken_pipe,
  hangup,
  interrupt,
  cpu_limit,
  user_signal_1,
  user_signal_2,
  terminate
};

/// Formats a reason: "SIGTERM", "the file runs/tiny/halt", ...
std::string describe(Stop reason, const std::filesystem::path& run_folder);

/// Returns the seconds to reserve before the walltime ends: a save may take twice as long as the
/// slowest one so far, a step is in progress, and Slurm may signal a minute early.
double lead_time(double save_seconds, double step_seconds);

/// Detector for requests to end the run: a signal to any rank (core/process.hpp), a file
/// `halt` in the run folder, and the end of the job's walltime. Rank 0 watches the last two.
class Deadline {
 public:
  /// `watches`: this rank watches the folder and the clock.
  Deadline(std::filesystem::path run_folder, bool watches);

  /// Returns the request that this rank sees. Local: the maximum over the ranks counts.
  Stop asked(double save_seconds, double step_seconds);
  /// Returns the seconds until the job is ended, if known.
  std::optional<double> seconds_left(std::chrono::milliseconds timeout = {});

  /// Returns true if SIGTERM was received. Any thread.
  static bool termination_asked();

  static std::filesystem::path halt_file(const std::filesystem::path& run_folder);
  /// Returns true if the run folder has a halt file, also one that is a link to nothing.
  static bool halt_file_is_there(const std::filesystem::path& run_folder);

 private:
  bool is_nearly_over(double lead);
  bool sees_halt_file();

  std::filesystem::path run_folder_;
  bool watches_;
  std::optional<Walltime> walltime_;
  Walltime::Clock::time_point looked_{};  ///< last check for the halt file
};

}  // namespace llamesh::train
