#pragma once

#include <optional>
#include <string>

namespace llamesh::train {

/// Returns this job's id in the form that names only this job to Slurm's commands: 123_4 for the
/// task of a job array whose id also means the whole array. Empty outside a job.
std::optional<std::string> own_job_id();

/// Returns what `squeue -h -o FORMAT` prints for this job. Times are in seconds since 1970. Empty
/// outside a job, or if Slurm does not answer within 15 s.
std::string ask_squeue(const std::string& format);

}  // namespace llamesh::train
