#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "train/records/goodput.hpp"
#include "train/records/step_record.hpp"

namespace llamesh::train {

/// State of a run that is shown beside its latest step.
struct RunGauges {
  std::string run;                   ///< run.name, the label of every metric
  bool running = true;               ///< false: the run has ended, for whatever reason it knows
  std::int64_t step = 0;             ///< steps done
  std::int64_t steps = 0;            ///< the run's total
  std::int64_t checkpoint_step = 0;  ///< newest checkpoint's step; 0: none
  std::optional<double> checkpoint_time = {};  ///< when this launch saved it, Unix time
  std::int64_t memory_step = 0;  ///< newest memory checkpoint's step in this launch; 0: none
  /// Losses by validation set, from this launch's last evaluation.
  std::vector<std::pair<std::string, double>> validation_losses = {};
  std::optional<double> joules = {};  ///< RunState::joules
  Goodput goodput = {};               ///< RunState::goodput
};

/// Formats a run in the OpenMetrics text format 1.0, without timestamps. To Prometheus' text format
/// 0.0.4, which node_exporter's textfile collector reads, it is valid too: `# EOF` is a comment
/// there, and a counter is untyped, since its type is that of the name without `_total`.
/// `record`: the latest step, null before the first. Unknown values have no line. Pure.
std::string to_openmetrics(const RunGauges& run, const StepRecord* record);

/// A file for node_exporter's textfile collector, which holds the latest state of a run. Each write
/// replaces it by renaming a new file, readable by all, since the collector has another user.
class OpenMetricsFile {
 public:
  /// Throws (exit 74) if the file cannot be written.
  OpenMetricsFile(std::filesystem::path path, const RunGauges& run);
  /// Throws (exit 74) if the file cannot be written.
  void write(const RunGauges& run, const StepRecord* record);

 private:
  std::filesystem::path path_;
};

}  // namespace llamesh::train
