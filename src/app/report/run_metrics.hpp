#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamesh::app {

/// One step's line of metrics.jsonl. Fields that are missing, null or not a number are NaN.
struct StepMetrics {
  double loss, grad_norm, lr, tokens, seconds, tokens_per_second, mfu;
  double valley, peak;     ///< bytes, maximum over ranks
  double seconds_compute;  ///< of `seconds`, on CPUs
  double time;             ///< of the line, seconds since 1970
  double elapsed;          ///< wall-clock seconds until then, without the pauses between starts
  std::map<std::string, double> traffic;                ///< by mesh axis: bytes that a rank sent
  std::map<std::string, double> traffic_between_nodes;  ///< those of them that left its node
  std::map<std::string, double> exposed;                ///< by axis: seconds waited for it, on CPUs
};

/// A start of the run, as far as its line tells.
struct RunStart {
  std::int64_t step = 0;  ///< after which it continued
  double time = 0;        ///< seconds since 1970, or NaN
  double ranks = 0;       ///< or NaN
  std::string mesh;       ///< "replicate=2 x shard=4", or empty
  std::string host, version;
  std::vector<std::pair<std::string, double>> phases;  ///< of its start-up, in seconds
};

/// A run's metrics.jsonl by step, as if it had never been interrupted: after a resume repeated
/// steps replace the earlier ones, and those beyond the resumed step are dropped.
struct RunMetrics {
  std::map<std::int64_t, StepMetrics> steps;
  std::map<std::int64_t, double> validation;  ///< loss after that step, nats
  std::vector<std::int64_t> resumes;          ///< steps after 0 from which a later start resumed
  std::set<std::int64_t> skipped;             ///< steps without an update: they were not finite
  std::set<std::int64_t> spikes;              ///< steps whose loss or gradient norm jumped
  std::vector<RunStart> starts;               ///< all, also those whose steps are replaced
  std::size_t checkpoints = 0;                ///< times that a checkpoint was written
  std::size_t unreadable = 0;                 ///< lines left out; a torn last line is not counted
};

/// Adds a line of metrics.jsonl. False, and nothing added, when it is not a JSON object with a
/// step, or an event. Events of unknown kinds are fine.
bool add_line(std::string_view line, RunMetrics& run);

/// Reads a metrics.jsonl.
RunMetrics read_lines(const std::filesystem::path& file);
/// Reads a run's metrics.jsonl; a missing file, or one without a step, is a user error (exit 78).
RunMetrics read_metrics(const std::filesystem::path& file);

}  // namespace llamesh::app
