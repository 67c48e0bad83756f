#include "core/slurm/squeue.hpp"

#include "core/process.hpp"

namespace llamesh::train {
std::optional<std::string> own_job_id() {
  const auto array = number_in_environment("SLURM_ARRAY_JOB_ID"),
             task = number_in_environment("SLURM_ARRAY_TASK_ID");
  const auto job = number_in_environment("SLURM_JOB_ID");
  // The other tasks have ids of their own, and a job that a task submits inherits its variables.
  if (!job.empty() && job == array && !task.empty()) return array + "_" + task;
  return job.empty() ? std::nullopt : std::optional(job);
}

std::string ask_squeue(const std::string& format) {
  const auto job = own_job_id();
  if (!job) return "";
  return output_of(
      {"env", "SLURM_TIME_FORMAT=%s", "timeout", "15", "squeue", "-h", "-o", format, "-j", *job});
}

}  // namespace llamesh::train
