#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/json_output.hpp"

namespace llamesh::app {

/// How a run stands, by what is in its folder. What is not known is empty.
struct RunStatus {
  struct Checkpoint {
    std::int64_t step = 0;
    double age_seconds = 0;
  };

  /// "not_started"; "starting": a job holds the folder and has not begun to train; "running";
  /// "stopped": it will go on when it is started again; "done"; "failed"; "killed": it did not come
  /// to say that it ended; "unknown": state.json cannot be read.
  std::string phase;
  std::optional<std::int64_t> step;  ///< the newest that is done
  std::optional<std::int64_t> steps;
  std::optional<double> loss;               ///< of that step, nats a token
  std::optional<double> tokens_per_second;  ///< the median of the newest steps
  std::optional<double> eta_seconds;        ///< while it runs
  std::optional<Checkpoint> checkpoint;     ///< the newest
  std::optional<std::int64_t> restarts;
  Json failure = nullptr;  ///< the last one, see failure.hpp
  std::string reason;      ///< why it stopped or failed, one line

  bool ended() const;
};

/// Reads small files and the end of metrics.jsonl. No MPI needed, and nothing is written. A path
/// that is no folder, and files in it that are not regular, are user errors (exit 78).
RunStatus read_status(const std::filesystem::path& run_folder);

/// The object of `llamesh status --json`.
Json to_json(const RunStatus& status);

/// For people: a few short lines.
std::vector<std::string> to_lines(const RunStatus& status, const std::string& name);

}  // namespace llamesh::app
