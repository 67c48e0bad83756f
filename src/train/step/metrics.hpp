#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/file.hpp"
#include "train/run/run_inputs.hpp"
#include "train/step/expert_balance.hpp"

namespace llamesh::train {

/// Measurements from one optimizer step, the same on every rank.
struct StepRecord {
  std::int64_t step = 0;  ///< counts from 1: steps done so far
  double loss = 0;        ///< mean over the step's tokens, nats
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
  std::int64_t tokens = 0;  ///< since the start of the run
  /// On the slowest rank, from the exchange of the previous step's values to this one's: the
  /// previous update, and this step's data and passes, but not the time between the two steps.
  double seconds = 0;
  double tokens_per_second = 0;
  /// See flops.hpp; relative to the measured GEMM rate over all ranks. Empty: that is unsure.
  std::optional<double> mfu = {};
  std::int64_t valley = 0;            ///< bytes in use after the passes, maximum over ranks
  std::int64_t peak = 0;              ///< peak bytes in use within the step, maximum over ranks
  std::int64_t predicted_valley = 0;  ///< planned before the first step (Setup::plan_memory)
  std::int64_t predicted_peak = 0;
  /// Bytes of other host memory in use after the passes, maximum over ranks: offloaded state, a
  /// GPU's pinned buffers, the copy for an asynchronous checkpoint.
  std::int64_t on_host = 0;
  std::int64_t predicted_on_host = 0;           ///< without checkpoints
  std::map<std::string, std::int64_t> traffic;  ///< per axis: bytes sent per rank in the step
  /// Per axis: the part that goes to another node, mean over all ranks.
  std::map<std::string, std::int64_t> traffic_between_nodes;
  std::int64_t request = 0;  ///< maximum over ranks (Trainer::Request)
  // Means over ranks.
  double seconds_compute = 0;                  ///< part of `seconds` without waiting for any axis
  std::map<std::string, double> exposed = {};  ///< per axis: seconds waiting for it
  /// Per axis: seconds in its collectives, hidden or not. Empty on GPUs.
  std::map<std::string, double> in_collectives = {};
  /// Energy of all nodes since the previous step's passes ended, in joules, with what lay between
  /// (evaluation, save). Empty if a counter is missing (device/energy.hpp).
  std::optional<double> joules = {};
  double tokens_per_joule = 0;                 ///< 0: unknown
  std::vector<std::string> stragglers = {};    ///< a line for each rank newly found slow
  std::optional<ExpertBalance> experts = {};   ///< of the step's tokens, if there are experts
  std::vector<std::string> idle_experts = {};  ///< a line for each layer with newly idle experts
  std::vector<std::string> healed = {};        ///< a line for each repetition of the passes
  std::string skipped = {};                    ///< reason for making no update; "": updated
};

/// Formats the record as log fields, "loss 2.3457", most important first.
std::vector<std::string> log_fields(const StepRecord& record, std::int64_t total_steps);

/// Returns the latest step in metrics.jsonl; -1: none.
std::int64_t last_step_of(const std::filesystem::path& path);

/// Duration of the steps in a metrics.jsonl, in seconds.
struct EarlierSteps {
  double kept = 0;                      ///< up to the step after which the run continues
  double dropped = 0;                   ///< later ones
  std::optional<double> last_end = {};  ///< when the last one ended, since 1970; empty: none
};

/// Writer that appends to metrics.jsonl: one JSON object per line, with numbers that read back
/// bit-exactly.
class MetricsFile {
 public:
  /// Opens the file for a run that continues after `step`. Removes lines for later steps, left by a
  /// killed start, and incomplete lines, so that each step appears once. A file that is not a
  /// metrics file is quarantined with a warning. An I/O failure throws (exit 74).
  MetricsFile(const std::filesystem::path& path, std::int64_t step);
  /// Steps that the file had when it was opened.
  const EarlierSteps& earlier() const { return earlier_; }
  void write(const StepRecord& record);
  /// Writes {"event": "validation", "step": ..., "loss": ...}, and "set" unless it is the default
  /// one.
  void write_validation(std::int64_t step, double loss,
                        const std::string& set = default_validation_set);
  /// Writes {"event": name, "step": ..., "detail": ..., "time": ...}; name is "checkpoint",
  /// "straggler", "healed", "idle_experts", "skipped", "spike" or "early_stop".
  void write_event(const std::string& name, std::int64_t step, const std::string& detail);
  /// Writes {"event": "goodput", "step": ..., "productive": ..., ...}: seconds by part, and
  /// "share".
  void write_goodput(std::int64_t step, const std::vector<std::pair<std::string, double>>& parts);
  /// Writes the event "start" or "resume", also with "ranks", "mesh", "host" (rank 0's) and
  /// "version".
  void write_start(const std::string& name, std::int64_t step, const std::string& detail,
                   const std::string& mesh);
  /// Writes {"event": "startup", "step": ..., "phases": {name: seconds}}.
  void write_startup(std::int64_t step, const std::vector<std::pair<std::string, double>>& phases);

 private:
  void append(const std::string& line);
  EarlierSteps earlier_;
  Descriptor file_;
};

}  // namespace llamesh::train
