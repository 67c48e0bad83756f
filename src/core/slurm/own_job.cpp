#include "core/slurm/own_job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "core/process.hpp"

namespace llamesh {

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

void comment_job(const std::string& text) {
  const auto job = own_job_id();
  if (!job) return;
  std::array<std::string, 8> words{"timeout",  "-k",     "0.5",           "2",
                                   "scontrol", "update", "JobId=" + *job, "Comment=" + text};
  std::array<char*, words.size() + 1> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  posix_spawn_file_actions_t silent;
  posix_spawn_file_actions_init(&silent);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&silent, output, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  if (posix_spawnp(&child, "timeout", &silent, nullptr, arguments.data(), environ) == 0)
    waitpid(child, nullptr, 0);
  posix_spawn_file_actions_destroy(&silent);
}

std::string job_id() {
  const auto job = number_in_environment("SLURM_JOB_ID");
  return !job.empty() ? job : fmt::format("{}-{}", this_process().host, getpid());
}

std::string job_name() {
  const auto restarts = number_in_environment("SLURM_RESTART_COUNT");
  return fmt::format("{}.{}", job_id(), restarts.empty() ? "0" : restarts);
}

}  // namespace llamesh
