#pragma once

#include <functional>
#include <string>

namespace llamesh::comm {

/// Callback that looks up an environment variable like getenv: null if it is not set.
using Environment = std::function<const char*(const char*)>;

/// Rank count from the launcher's environment variables.
struct Launch {
  int ranks = 0;         ///< 0: no launcher known
  std::string variable;  ///< the variable that says so
  int rank = 0;          ///< this process's rank
  bool wired = true;     ///< the launcher offered a PMI through which MPI can connect the ranks

  /// Returns true for Open MPI's mpirun. It prints pages of text about ranks with a nonzero exit
  /// code, but nothing if they asked it to end the job.
  bool by_open_mpi() const { return variable == "OMPI_COMM_WORLD_SIZE"; }
};

/// Detects the launcher. mpirun's own variables win over Slurm's: an mpirun inside an allocation
/// may start fewer or more ranks than the allocation has tasks, and its daemons are themselves
/// tasks in a step. Must be called before MPI_Init, which may set some of these variables. Pure.
Launch detect_launch(const Environment& environment);

/// Returns "" if a world of `world_size` ranks matches the launch; else the problem and the remedy.
/// Pure.
std::string launch_problem(const Launch& launch, int world_size);

}  // namespace llamesh::comm
