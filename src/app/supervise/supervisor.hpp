#pragma once

#include "app/program/command.hpp"

namespace llamesh::app {

/// Adds `llamesh supervise`, for a Slurm batch script (slurm/resilient.sbatch): launches the run on
/// healthy nodes of the job, and again after a failure, without the node to blame. Passes on
/// SIGTERM and SIGUSR2, and requeues the job as slurm/requeue.sbatch does. Returns the run's
/// exit code.
Declare declare_supervise;

}  // namespace llamesh::app
