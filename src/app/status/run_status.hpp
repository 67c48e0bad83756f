#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/program/output_file.hpp"
#include "train/records/goodput.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {

/// A run's status from the files in its folder. Unknown fields are empty.
struct RunStatus {
  struct Checkpoint {
    std::int64_t step = 0;
    double age_seconds = 0;
  };

  /// "not_started"; "starting": a job holds the folder but has not begun to train; "running";
  /// "stopped": continues on the next launch; "done"; "failed"; "killed": ended without recording
  /// why; "unknown": state.json cannot be read.
  std::string phase;
  std::optional<std::int64_t> step;  ///< last completed step
  std::optional<std::int64_t> steps;
  std::optional<double> loss;               ///< at that step, nats per token
  std::optional<double> tokens_per_second;  ///< median over the latest steps
  std::optional<double> eta_seconds;        ///< while running
  std::optional<Checkpoint> checkpoint;     ///< newest on disk
  /// Step of the newest memory checkpoint, if it is newer and the run is not done. It is gone if a
  /// node that had it was lost or returned to Slurm.
  std::optional<std::int64_t> memory_checkpoint;
  std::optional<train::StepLoss> best;  ///< best checkpoint kept, and its validation loss
  std::optional<std::int64_t> restarts;
  std::optional<double> kilowatt_hours;   ///< of all launches, when state.json was written
  std::optional<train::Goodput> goodput;  ///< of all launches, likewise
  Json failure = nullptr;                 ///< last failure, see parse_failure()
  std::string reason;                     ///< why it stopped or failed, one line

  bool ended() const;
};

/// Reads small files and the end of metrics.jsonl. Needs no MPI and writes nothing. A path that is
/// not a folder, or non-regular files in it, are user errors (exit 78).
RunStatus read_status(const std::filesystem::path& run_folder);

/// Returns the object for `llamesh status --json`.
Json to_json(const RunStatus& status);

/// Formats a few short lines for people.
std::vector<std::string> to_lines(const RunStatus& status, const std::string& name);

/// Parses failure.json into a run's last failure: `kind`, `rank`, `host`, `phase`, `step`, `axis`,
/// `collective`, `unit`, `waiting` (ranks), `detail`, `at`. Unknown fields and those with other
/// types are null, `waiting` is empty. Returns null if the text is not a JSON object.
Json parse_failure(std::string_view text);
/// Converts state.json, which knows less; null if the run did not fail.
Json failure_of(const train::RunState& state);

/// A run in a folder of runs.
struct ListedRun {
  std::string folder;
  RunStatus status;  ///< "unknown" with the error as its reason, if a file cannot be read
};

/// Returns the runs directly below a folder that is not a run itself, by name. Empty if there are
/// none.
std::vector<ListedRun> list_runs(const std::filesystem::path& folder);

/// Returns the object for `llamesh status --json` on such a folder.
Json to_json(const std::vector<ListedRun>& runs);

/// Formats a line per run.
std::vector<std::string> to_lines(const std::vector<ListedRun>& runs);

}  // namespace llamesh::app
