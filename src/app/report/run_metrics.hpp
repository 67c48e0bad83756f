#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamesh::app {

/// One step's line in metrics.jsonl. Fields that are missing, null or not numeric are NaN.
struct StepMetrics {
  double loss, grad_norm, lr, tokens, seconds, tokens_per_second, mfu;
  double valley, peak;              ///< bytes, maximum over ranks
  double joules, tokens_per_joule;  ///< energy since the previous step, all nodes
  double seconds_compute;           ///< part of `seconds`
  double time;                      ///< when the line was written, seconds since 1970
  double elapsed;  ///< wall-clock seconds up to then, without pauses between starts
  std::map<std::string, double> traffic;                ///< per mesh axis: bytes sent per rank
  std::map<std::string, double> traffic_between_nodes;  ///< the part that left its node
  std::map<std::string, double> exposed;                ///< per axis: seconds waiting for it
  std::map<std::string, double> experts;  ///< their balance, by name; empty without experts
};

/// A start of the run, as far as its line tells.
struct RunStart {
  std::int64_t step = 0;  ///< step after which it continued
  double time = 0;        ///< seconds since 1970, or NaN
  double ranks = 0;       ///< or NaN
  std::string mesh;       ///< "replicate=2 x shard=4", or empty
  std::string host, version;
  std::vector<std::pair<std::string, double>> phases;  ///< start-up, in seconds
};

/// A run's metrics.jsonl by step, as if it had never been interrupted: after a resume, repeated
/// steps replace the earlier ones, and steps beyond the resumed one are dropped.
struct RunMetrics {
  std::map<std::int64_t, StepMetrics> steps;
  std::map<std::int64_t, double> validation;  ///< loss after that step, nats: of the deciding set
  std::string validation_set;                 ///< its name; empty: data.validation, or none
  std::map<std::string, std::map<std::int64_t, double>> other_validation;  ///< by set
  std::optional<std::int64_t> early_stop;  ///< step at which train.early_stop ended the run
  std::vector<std::int64_t> resumes;       ///< steps after 0 from which a later start resumed
  std::set<std::int64_t> skipped;          ///< steps without an update: not finite
  std::set<std::int64_t> spikes;           ///< steps with a jump in loss or gradient norm
  std::vector<RunStart> starts;            ///< all, including those whose steps are replaced
  std::size_t checkpoints = 0;             ///< number of checkpoints written
  std::int64_t memory_step = 0;            ///< newest memory checkpoint's step; 0: none
  std::size_t unreadable = 0;              ///< lines left out, except a torn last line
};

/// Adds a line from metrics.jsonl. Returns false, and adds nothing, if it is neither a JSON object
/// with a step nor an event. Unknown events are fine.
bool add_line(std::string_view line, RunMetrics& run);

/// Reads a metrics.jsonl.
RunMetrics read_lines(const std::filesystem::path& file);
/// Reads a run's metrics.jsonl; a missing file, or one without a step, is a user error (exit 78).
RunMetrics read_metrics(const std::filesystem::path& file);

}  // namespace llamesh::app
