#pragma once

#include <optional>
#include <string>

namespace llamesh {

/// Returns this job's id in the form that names only this job to Slurm's commands: 123_4 for the
/// task of a job array whose id also means the whole array. Empty outside a job.
std::optional<std::string> own_job_id();

/// Returns what `squeue -h -o FORMAT` prints for this job. Times are in seconds since 1970. Empty
/// outside a job, or if Slurm does not answer within 15 s.
std::string ask_squeue(const std::string& format);

/// Sets the job's comment, which `squeue -o %k` and `scontrol show job` print. Takes 2 s at most;
/// does nothing outside a job, or if Slurm does not answer.
void comment_job(const std::string& text);

/// Returns a name for this job that no other job has at this time: its id under Slurm, else
/// "<host>-<pid>".
std::string job_id();

/// Names the job until it is requeued: "<job_id()>.<restarts>".
std::string job_name();

}  // namespace llamesh
