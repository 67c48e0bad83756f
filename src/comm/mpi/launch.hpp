#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace llamesh::comm {

/// Callback that looks up an environment variable like getenv: null if it is not set.
using Environment = std::function<const char*(const char*)>;

/// Rank count from the launcher's environment variables.
struct Launch {
  int ranks = 0;         ///< 0: no launcher known, or it gives no number
  std::string variable;  ///< the variable that says so
  int rank = 0;          ///< this process's rank
  bool wired = true;     ///< the launcher offered a PMI through which MPI can connect the ranks
  /// The launcher gives each process its rank but no number of ranks: `ranks` is the rank plus one.
  bool at_least = false;

  /// Returns true if this process reports that it is a world of one. Under Slurm, whose steps set
  /// their own variables, that is rank 0. Elsewhere it is each process: its rank may be a variable
  /// left over from another launch, and then nobody else is there to report.
  bool reports_world_of_one() const { return rank == 0 || !variable.starts_with("SLURM"); }
  /// Returns true in a shell within a Slurm allocation: no launcher started this process.
  bool is_shell_in_allocation() const { return variable == "SLURM_NTASKS"; }
  /// Returns true for Open MPI's mpirun. It prints pages of text about ranks with a nonzero exit
  /// code, but nothing if they asked it to end the job.
  bool by_open_mpi() const { return variable == "OMPI_COMM_WORLD_SIZE"; }
};

/// Detects the launcher: Open MPI's mpirun, PRRTE's prterun, IBM's jsrun, Hydra's mpiexec (MPICH,
/// Intel MPI), HPE's PALS, Flux, Slurm's srun with any MPI plugin, torchrun. A launcher inside an
/// allocation wins over it: an mpirun may start fewer or more ranks than the allocation has tasks,
/// and its daemons are themselves tasks in a step. Must be called before MPI_Init, which may set
/// some of these variables. Pure.
Launch detect_launch(const Environment& environment);

/// Returns "" unless each of several launched ranks is a world of one; else the problem and the
/// remedy. A larger world is right whatever its size: a launcher that is not known may have started
/// it within an allocation or a step, whose variables it leaves to its ranks.
/// `plugin` is what srun_plugin() returned. Pure.
std::string launch_problem(const Launch& launch, int world_size, std::string_view plugin = "pmix");

/// Returns the plugin for `srun --mpi=` through which an MPI connects the ranks: pmix for Open MPI,
/// cray_shasta for Cray MPICH, pmi2 for MPICH and its other descendants. `library` is MPI's version
/// text. `listed` is the output of `srun --mpi=list`; if it lists plugins, but none for this MPI,
/// returns "". Pure.
std::string srun_plugin(std::string_view library, std::string_view listed);

}  // namespace llamesh::comm
