#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/file.hpp"
#include "train/records/sample_text.hpp"
#include "train/records/state_hashes.hpp"
#include "train/records/step_record.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// Formats the record as log fields, "loss 2.3457", most important first.
std::vector<std::string> log_fields(const StepRecord& record, std::int64_t total_steps);

/// Returns "margin 0.123, accuracy 0.75" for a record with means over pairs; "" for others.
std::string describe_pairs(const StepRecord& record);

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
  /// killed launch, and incomplete lines, so that each step appears once. A file that is not a
  /// metrics file is quarantined with a warning. An I/O failure throws (exit 74).
  MetricsFile(const std::filesystem::path& path, std::int64_t step);
  /// Steps that the file had when it was opened.
  const EarlierSteps& earlier() const { return earlier_; }
  /// Writes the record, with the time.
  void write(StepRecord record);
  /// Writes {"event": "validation", "step": ..., "loss": ...}, with the quantities that are
  /// Measured::in_validation_too, and "set" unless it is the default one.
  void write_validation(const StepRecord& record, const std::string& set = default_validation_set);
  /// Writes {"event": "state_hash", "step": ..., "hashes": {layer: hash}}.
  void write_state_hashes(std::int64_t step, const StateHashes& hashes);
  /// Writes {"event": "samples", "step": ..., "texts": [{"prompt": ..., "text": ...}, ...]}.
  void write_samples(std::int64_t step, const std::vector<SampleText>& samples);
  /// Writes {"event": name, "step": ..., "detail": ..., "time": ...}; name is "checkpoint",
  /// "straggler", "healed", "idle_experts", "skipped", "spike" or "early_stop".
  void write_event(const std::string& name, std::int64_t step, const std::string& detail);
  /// Writes {"event": "goodput", "step": ..., "productive": ..., ...}: seconds by part, and
  /// "share".
  void write_goodput(std::int64_t step, const std::vector<std::pair<std::string, double>>& parts);
  /// Writes the event "start" or "resume", also with "ranks", "mesh", "host" (rank 0's),
  /// "version", "command" (rank 0's), and "commit" and "job" if they are known.
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
