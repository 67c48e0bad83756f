#pragma once

#include <functional>
#include <string>

namespace llamesh::comm {

/// Looks up an environment variable, as getenv does: null when it is not set.
using Environment = std::function<const char*(const char*)>;

/// How many ranks the launcher started, by the environment variables that it sets.
struct Launch {
  int ranks = 0;         ///< 0: no launcher known
  std::string variable;  ///< which variable says so
  int rank = 0;          ///< this process's rank among them
  bool wired = true;     ///< the launcher offered a PMI by which MPI can bring the ranks together

  /// Open MPI's mpirun, which prints pages of text about ranks that end with an exit code other
  /// than 0, but none when they have asked it to end the job.
  bool by_open_mpi() const { return variable == "OMPI_COMM_WORLD_SIZE"; }
};

/// mpirun's own variables win over Slurm's: an mpirun inside an allocation may start fewer or more
/// ranks than the allocation has tasks, and its daemons are tasks of a step themselves. Pure. Must
/// be called before MPI_Init, which may set some of these variables itself.
Launch detect_launch(const Environment& environment);

/// Empty when a world of `world_size` ranks is what was launched; else what is wrong and what to
/// do. Pure.
std::string launch_problem(const Launch& launch, int world_size);

}  // namespace llamesh::comm
