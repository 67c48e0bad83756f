#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/file.hpp"

namespace llamesh::train {

/// The value, a NaN without its sign, which means nothing and would be printed: "-nan".
inline double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

/// The measurements of one optimizer step, the same on every rank.
struct StepRecord {
  std::int64_t step = 0;  ///< counts from 1: steps done so far
  double loss = 0;        ///< mean over the step's tokens, nats
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
  std::int64_t tokens = 0;  ///< since the start of the run
  /// On the slowest rank, from the exchange of the previous step's values to that of this one's:
  /// the previous update, this step's data and passes; without what happened between the two steps.
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;                     ///< see flops.hpp, over the measured GEMM rate of all ranks
  std::int64_t valley = 0;            ///< bytes in use after the passes, maximum over ranks
  std::int64_t peak = 0;              ///< most bytes in use within the step, maximum over ranks
  std::int64_t predicted_valley = 0;  ///< the same as planned before the first step (plan.hpp)
  std::int64_t predicted_peak = 0;
  /// Bytes of host memory in use beside these after the passes, maximum over ranks: what is
  /// offloaded, a GPU's pinned buffers, the copy for an asynchronous checkpoint.
  std::int64_t on_host = 0;
  std::int64_t predicted_on_host = 0;           ///< without checkpoints
  std::map<std::string, std::int64_t> traffic;  ///< by axis: bytes sent by a rank in the step
  /// By axis: how many of these go to another node, mean over all ranks.
  std::map<std::string, std::int64_t> traffic_between_nodes;
  std::int64_t request = 0;  ///< maximum over ranks (Trainer::Request)
  // Means over ranks; on GPUs there are none.
  double seconds_compute = 0;  ///< of `seconds`, those in which no axis is waited for
  std::map<std::string, double> exposed = {};         ///< by axis: those in which it is
  std::map<std::string, double> in_collectives = {};  ///< by axis: seconds in them, hidden or not
  std::vector<std::string> stragglers = {};  ///< a line for each rank that was found slow now
  std::string skipped = {};                  ///< why the step made no update; "": it made one
};

/// The record as fields of a log line, "loss 2.3457", the most important field first.
std::vector<std::string> log_fields(const StepRecord& record, std::int64_t total_steps);

/// The newest step in metrics.jsonl; -1: none.
std::int64_t last_step_of(const std::filesystem::path& path);

/// Appends to metrics.jsonl: one JSON object a line, numbers that read back as the same bits.
class MetricsFile {
 public:
  /// Opens the file of a run that continues after `step`: its lines of later steps, which a killed
  /// start has left, and incomplete lines are removed, so that each step is there once. A file that
  /// is not a metrics file is quarantined, with a warning. An I/O failure throws (exit 74).
  MetricsFile(const std::filesystem::path& path, std::int64_t step);
  void write(const StepRecord& record);
  /// {"event": "validation", "step": ..., "loss": ...}
  void write_validation(std::int64_t step, double loss);
  /// {"event": name, "step": ..., "detail": ..., "time": ...}: "checkpoint", "straggler", "healed",
  /// "skipped" or "spike".
  void write_event(const std::string& name, std::int64_t step, const std::string& detail);
  /// The event "start" or "resume", also with "ranks", "mesh", "host" (of rank 0) and "version".
  void write_start(const std::string& name, std::int64_t step, const std::string& detail,
                   const std::string& mesh);
  /// {"event": "startup", "step": ..., "phases": {name: seconds}}
  void write_startup(std::int64_t step, const std::vector<std::pair<std::string, double>>& phases);

 private:
  void append(const std::string& line);
  Descriptor file_;
};

}  // namespace llamesh::train
