#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/watchdog.hpp"
#include "core/error.hpp"

namespace llamesh::train {

/// The state of a run, for the job script, which decides whether to start it again (Slurm does not
/// always pass on exit codes), and for the next start.
enum class RunPhase { running, stopped, done, failed };

struct RunState {
  RunPhase phase = RunPhase::running;
  std::int64_t step = 0;        ///< of the newest checkpoint; 0: none
  std::int64_t first_step = 0;  ///< after which this start continued
  /// How many consecutive starts, up to this one, began where the previous one had, or a step
  /// later.
  std::int64_t starts_here = 1;
  std::int64_t starts = 1;  ///< of the run, this one included
  std::int64_t steps = 0;   ///< that the run is to do; 0: not known
  /// Seconds of walltime that the run needs to make more than one step and still save; 0: not
  /// known.
  double seconds_needed = 0;
  ExitCode exit_code = ExitCode::done;  ///< when it has ended
  std::string reason = {};              ///< why it stopped or failed, one line
  // Where ranks hung or were lost:
  std::string doing = {};  ///< what they did at that time
  std::vector<int> culprit_ranks = {};
  std::vector<std::string> culprit_hosts = {};
  // As found in the file:
  std::string job = {};   ///< Slurm's id, or empty
  std::string time = {};  ///< when it was written, UTC

  bool operator==(const RunState&) const = default;
};

/// The text of state.json, with the job's id, its restarts, host and time.
std::string to_text(const RunState& state);

/// Nothing when `text` is not that of a state, or values are out of range.
std::optional<RunState> parse_run_state(std::string_view text);

/// <run folder>/state.json.
std::filesystem::path state_file(const std::filesystem::path& run_folder);

/// Nothing when there is no such file, or none of to_text(). Throws (exit 78) when it
/// is not a regular file.
std::optional<RunState> read_run_state(const std::filesystem::path& run_folder);

/// Replaces the file atomically (a new file, renamed). An I/O failure throws (exit 74).
void write_run_state(const std::filesystem::path& run_folder, const RunState& state);

/// Records a failed start, in state.json and failure.json: the existing state with these changes,
/// `stopped` where the code asks for another start. Any rank; an I/O failure is ignored, since a
/// worse error is being reported.
void record_failure(const std::filesystem::path& run_folder, ExitCode code,
                    const std::string& reason) noexcept;
/// The same for ranks that hang or are lost. Where several ranks report, the first verdict is kept:
/// false for the others.
bool record_failure(const std::filesystem::path& run_folder, ExitCode code,
                    const comm::Verdict& verdict) noexcept;

/// The state of a start that continues after `step`. Throws exit 93 under a scheduler when each of
/// the previous two starts gained at most one step, for any reason (a fault, or a walltime that is
/// too short for a second step): a third one would do no better.
RunState start_after(const std::optional<RunState>& before, std::int64_t step, bool scheduled);

}  // namespace llamesh::train
