#pragma once

#include <string>
#include <vector>

namespace llamesh::app {

/// Reaction to having fewer healthy nodes than a run asks for: continue on those, or queue the job
/// again.
enum class Resize : bool { shrink, requeue };

struct SuperviseArguments {
  std::string run;  ///< run folder
  int spares = 0;   ///< nodes of the job that the run leaves free at first
  Resize resize = Resize::shrink;
  std::vector<std::string> command;  ///< srun ... llamesh train ..., without nodes and tasks
};
/// Runs `llamesh supervise` in a Slurm batch script (slurm/resilient.sbatch): launches the run on
/// healthy nodes of the job, and again after a failure, without the node to blame. Passes on
/// SIGTERM and SIGUSR2, and requeues the job as slurm/requeue.sbatch does. Returns the run's
/// exit code.
int supervise(const SuperviseArguments& arguments);

}  // namespace llamesh::app
