#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::app {

/// One step's line of metrics.jsonl. What a line lacks, or holds as null or as anything but a
/// number, is NaN here.
struct StepMetrics {
  double loss, grad_norm, lr, tokens, seconds, tokens_per_second, mfu;
  double valley, peak;                                  ///< bytes on the fullest rank
  std::map<std::string, double> traffic;                ///< by mesh axis: bytes that a rank sent
  std::map<std::string, double> traffic_between_nodes;  ///< those of them that left its node
};

/// What metrics.jsonl says of a run, by step and as if it had never been interrupted: after a
/// resume the steps done again replace those of before, and what lay beyond the resumed step is
/// dropped.
struct RunMetrics {
  std::map<std::int64_t, StepMetrics> steps;
  std::map<std::int64_t, double> validation;  ///< loss after that step, nats
  std::vector<std::int64_t> resumes;          ///< steps after 0 that a later start went on from
  std::size_t checkpoints = 0;                ///< times that a checkpoint was written
  std::size_t unreadable = 0;                 ///< lines left out; a torn last line is not counted
};

/// Adds a line of metrics.jsonl. False, and nothing added, when it is no JSON object with a step,
/// or an event. Events of unknown kinds are fine.
bool add_line(std::string_view line, RunMetrics& run);

/// Reads a run's metrics.jsonl; a missing file, or one without a step, is a user error (exit 78).
RunMetrics read_metrics(const std::filesystem::path& file);

}  // namespace llamesh::app
