#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/provenance/run_sources.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {

/// A file that llamesh wrote into the run folder.
struct RunFile {
  std::string name;         ///< "metrics.jsonl"
  std::string description;  ///< a few words
  std::string media_type;
  std::int64_t bytes = 0;
};

/// Validation loss on a set after a step.
struct SetLoss {
  std::string set;
  train::StepLoss at;
};

/// A checkpoint that the run still has.
struct KeptCheckpoint {
  std::string name;  ///< "step_00000100"
  std::int64_t step = 0, tokens = 0, state_bytes = 0;
  std::string manifest_hash;  ///< XXH3-64 over manifest.json, which has all other hashes
  std::string mesh, strategy, version;
  std::vector<SetLoss> validation;    ///< at its step
  bool best = false;                  ///< lowest validation loss, if the run keeps that one
  std::optional<std::size_t> launch;  ///< launch that wrote it
};

/// A launch, by its line in metrics.jsonl. Empty members are unknown.
struct LaunchFacts {
  std::int64_t first_step = 0;  ///< step after which it continued
  std::int64_t last_step = 0;   ///< its last step that the run still has; `first_step`: none
  std::optional<double> started, last_record;  ///< seconds since 1970
  bool ended = true;                           ///< false: may still be running
  std::optional<std::int64_t> ranks;
  std::string mesh, host, version, commit, job;
  std::string weights;                      ///< what a fresh start loaded, in words
  bool has_config = false;                  ///< config.yaml holds its inputs
  std::vector<std::size_t> used;            ///< indices in RunFacts::sources
  std::optional<std::size_t> origin;        ///< the source with its first weights
  std::optional<std::size_t> resumed_from;  ///< index in RunFacts::checkpoints
  std::optional<std::size_t> continues;     ///< earlier launch that did the step `first_step`
  std::vector<SetLoss> validation;          ///< newest per set
  std::optional<double> joules;             ///< in the steps that the run still has, where counted
};

/// Facts about a run, from its folder. The writers add none.
struct RunFacts {
  std::string name;
  std::string phase;  ///< "running", "stopped", "done", "failed"; empty: unknown
  std::int64_t step = 0;
  std::optional<std::int64_t> steps;  ///< the run's total
  double last_record = 0;             ///< seconds since 1970
  std::optional<double> joules;       ///< over all launches, as far as they were measured
  std::string config_hash;            ///< XXH3-64 over config.yaml; empty: there is none
  std::vector<RunFile> files;
  std::vector<KeptCheckpoint> checkpoints;  ///< oldest first
  std::vector<LaunchFacts> launches;        ///< those that metrics.jsonl still has, in order
  SourceList sources;
};

/// Reads the facts from a run's folder. Needs no MPI, and the run may be training. Checkpoints that
/// cannot be read are left out with a warning. Throws a user error for a folder that is no run, or
/// has no record yet.
RunFacts read_run_facts(const std::filesystem::path& folder);

/// Formats seconds since 1970 in UTC: "2026-11-22T12:34:56.789+00:00".
std::string iso_time(double seconds);

/// Returns the text for an identifier: bytes other than letters, digits, `-`, `.`, `_` and those in
/// `kept` become %XX.
std::string percent_encoded(std::string_view text, std::string_view kept = "");

}  // namespace llamesh::app
