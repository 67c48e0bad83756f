#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/json_output.hpp"
#include "train/job/goodput.hpp"

namespace llamesh::app {

/// A run's status from the files in its folder. Unknown fields are empty.
struct RunStatus {
  struct Checkpoint {
    std::int64_t step = 0;
    double age_seconds = 0;
  };

  /// "not_started"; "starting": a job holds the folder but has not begun to train; "running";
  /// "stopped": continues on the next start; "done"; "failed"; "killed": ended without recording
  /// why; "unknown": state.json cannot be read.
  std::string phase;
  std::optional<std::int64_t> step;  ///< last completed step
  std::optional<std::int64_t> steps;
  std::optional<double> loss;               ///< at that step, nats per token
  std::optional<double> tokens_per_second;  ///< median over the latest steps
  std::optional<double> eta_seconds;        ///< while running
  std::optional<Checkpoint> checkpoint;     ///< newest
  std::optional<std::int64_t> restarts;
  std::optional<double> kilowatt_hours;   ///< of all starts, when state.json was written
  std::optional<train::Goodput> goodput;  ///< of all starts, likewise
  Json failure = nullptr;                 ///< last failure, see failure.hpp
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

}  // namespace llamesh::app
