#include "train/job/squeue.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "core/process.hpp"

namespace llamesh::train {
namespace {

/// Returns the number in an environment variable, as text; empty if it has none.
std::string number_in(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string text = value == nullptr ? "" : value;
  return std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); }) ? text : "";
}

}  // namespace

std::optional<std::string> own_job_id() {
  const auto array = number_in("SLURM_ARRAY_JOB_ID"), task = number_in("SLURM_ARRAY_TASK_ID");
  const auto job = number_in("SLURM_JOB_ID");
  // The other tasks have ids of their own, and a job that a task submits inherits its variables.
  if (!job.empty() && job == array && !task.empty()) return array + "_" + task;
  return job.empty() ? std::nullopt : std::optional(job);
}

std::string ask_squeue(const std::string& format) {
  const auto job = own_job_id();
  if (!job) return "";
  return output_of("SLURM_TIME_FORMAT=%s timeout 15 squeue -h -o '" + format + "' -j " + *job +
                   " 2>/dev/null");
}

}  // namespace llamesh::train
