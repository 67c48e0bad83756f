#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/diagnosis/watchdog.hpp"
#include "core/error.hpp"
#include "train/records/goodput.hpp"

namespace llamesh::train {

/// State of a run. The job script reads it to decide on a restart (Slurm does not always pass on
/// exit codes), and so does the next launch.
enum class RunPhase { running, stopped, done, failed };

/// Loss after a step, in nats per token.
struct StepLoss {
  std::int64_t step = 0;
  double loss = 0;
  bool operator==(const StepLoss&) const = default;
};

struct RunState {
  RunPhase phase = RunPhase::running;
  std::int64_t step = 0;         ///< newest checkpoint's step; 0: none
  std::int64_t memory_step = 0;  ///< newest memory checkpoint's step; 0: none
  std::int64_t first_step = 0;   ///< step after which this launch continued
  /// Number of consecutive launches, including this one, that began where the previous one had, or
  /// one step later.
  std::int64_t starts_here = 1;
  /// Node faults that ended some of these launches (e.g. "rank 2, training step 47"), if the next
  /// launch left that node out. They do not count as a lack of progress.
  std::vector<std::string> node_faults = {};
  std::int64_t starts = 1;  ///< in the run, this one included
  std::int64_t steps = 0;   ///< the run's total; 0: unknown
  /// Walltime in seconds that the run needs to do more than one step and still save; 0: unknown.
  double seconds_needed = 0;
  /// Joules that all launches have used, as far as they were measured; empty: none was.
  std::optional<double> joules = {};
  /// Best checkpoint by validation loss, and that loss; empty: none is kept (checkpoint.keep_best).
  std::optional<StepLoss> best = {};
  Goodput goodput = {};                 ///< of all launches
  ExitCode exit_code = ExitCode::done;  ///< if it has ended
  std::string reason = {};              ///< why it stopped or failed, one line
  // If ranks hung or were lost:
  std::string doing = {};  ///< their activity at that time
  std::vector<int> faulty_ranks = {};
  std::vector<std::string> faulty_hosts = {};
  // As found in the file:
  std::string job = {};       ///< Slurm's id, or empty
  std::string restarts = {};  ///< times that Slurm has started this job again, or empty
  std::string time = {};      ///< time of writing, UTC

  bool operator==(const RunState&) const = default;
};

/// Serializes to state.json, with the job's id, its restarts, host and time.
std::string to_text(const RunState& state);

/// Parses a state; nothing if `text` is not one, or values are out of range.
std::optional<RunState> parse_run_state(std::string_view text);

/// Returns <run folder>/state.json.
std::filesystem::path state_file(const std::filesystem::path& run_folder);

/// Reads the state; nothing if there is no such file, or it is not from to_text(). Throws (exit 78)
/// if it is not a regular file.
std::optional<RunState> read_run_state(const std::filesystem::path& run_folder);

/// Replaces the file atomically (a new file, renamed). An I/O failure throws (exit 74).
void write_run_state(const std::filesystem::path& run_folder, const RunState& state);

/// Records a failed launch in state.json and failure.json: the existing state with these changes,
/// and `stopped` if the code asks for another launch. A run that was done stays so if its new
/// launch is refused (exit 78) before training. Any rank; ignores I/O failures, since a worse error
/// is being reported.
void record_failure(const std::filesystem::path& run_folder, ExitCode code,
                    const std::string& reason) noexcept;
/// Records ranks that hang or are lost. If several ranks report, the first diagnosis is kept;
/// returns false for the others.
bool record_failure(const std::filesystem::path& run_folder, ExitCode code,
                    const comm::Diagnosis& diagnosis) noexcept;

/// Returns the state for a launch on `hosts` that continues after `step`. Under a scheduler, throws
/// exit 93 if each of the previous two launches gained at most one step, for any reason (a fault,
/// or a walltime too short for a second step): a third one would do no better. A launch does not
/// count if a host to blame for its end is not among `hosts` (empty: unknown). If the same fault
/// returns without that host, it was not to blame, and both launches count. The eleventh launch in
/// a row is refused in any case. Pure.
RunState start_after(const std::optional<RunState>& before, std::int64_t step, bool scheduled,
                     const std::vector<std::string>& hosts = {});

}  // namespace llamesh::train
