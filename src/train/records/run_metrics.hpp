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

#include "train/records/sample_text.hpp"
#include "train/records/state_hashes.hpp"
#include "train/records/step_record.hpp"

namespace llamesh::train {

/// A step's line in metrics.jsonl. Numbers that are missing, null or not numeric are unknown
/// (step_quantities.hpp); `layers` of experts and what metrics.jsonl does not have are empty.
struct ReadStep : StepRecord {
  double elapsed = 0;  ///< wall-clock seconds up to then, without pauses between starts
};

/// A launch of the run, according to its line.
struct RunStart {
  std::int64_t step = 0;  ///< step after which it continued
  double time = 0;        ///< seconds since 1970, or NaN
  double ranks = 0;       ///< or NaN
  std::string mesh;       ///< "replicate=2 x shard=4", or empty
  std::string host, version;
  std::vector<std::pair<std::string, double>> phases = {};  ///< start-up, in seconds
  std::string commit = {};   ///< the program was built from it; empty: unknown
  std::string job = {};      ///< Slurm's id, or empty
  std::string command = {};  ///< rank 0's, or empty
  std::string detail = {};   ///< the weights' source, or after a resume the mesh that had saved
  double last_time = 0;      ///< newest `time` among its lines, its own included; or NaN
};

/// A run's metrics.jsonl by step, as if it had never been interrupted: after a resume, repeated
/// steps replace the earlier ones, and steps beyond the resumed one are dropped.
struct RunMetrics {
  std::map<std::int64_t, ReadStep> steps;
  std::map<std::int64_t, double> validation;  ///< loss after that step, nats: of the deciding set
  std::string validation_set;                 ///< its name; empty: data.validation, or none
  std::map<std::string, std::map<std::int64_t, double>> other_validation;  ///< by set
  std::optional<std::int64_t> early_stop;  ///< step at which train.early_stop ended the run
  std::vector<std::int64_t> resumes;       ///< steps after 0 from which a later launch resumed
  std::set<std::int64_t> skipped;          ///< steps without an update: not finite
  std::map<std::int64_t, StateHashes> state_hashes;         ///< after that step
  std::map<std::int64_t, std::vector<SampleText>> samples;  ///< after that step
  std::set<std::int64_t> spikes;  ///< steps with a jump in loss or gradient norm
  std::vector<RunStart> starts;   ///< all, including those whose steps are replaced
  std::size_t checkpoints = 0;    ///< number of checkpoints written
  std::int64_t memory_step = 0;   ///< newest memory checkpoint's step; 0: none
  std::size_t unreadable = 0;     ///< lines left out, except a torn last line
};

/// Adds a line from metrics.jsonl. Returns false, and adds nothing, if it is neither a JSON object
/// with a step nor an event. Unknown events are fine.
bool add_line(std::string_view line, RunMetrics& run);

/// Reads a metrics.jsonl.
RunMetrics read_lines(const std::filesystem::path& file);
/// Reads a run's metrics.jsonl; a missing file, or one without a step, is a user error (exit 78).
RunMetrics read_metrics(const std::filesystem::path& file);

}  // namespace llamesh::train
