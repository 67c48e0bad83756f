#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/mpi/communicator.hpp"
#include "core/error.hpp"

namespace llamesh::comm {

/// Meaning of a command without a launcher in a Slurm allocation with several tasks: a forgotten
/// launcher, or one rank.
enum class WithoutLauncher : std::uint8_t { refuse, one_rank };

/// Scope of MPI: initializes it (MPI_THREAD_MULTIPLE, errors returned and checked) and finalizes
/// it; writes rank and host to this_process(). A rank that hangs in MPI_Init or MPI_Finalize ends
/// the job (comm/mpi/time_limit.hpp). Throws a user error if srun started the ranks without a
/// PMI, as singletons (SLURM_NTASKS differs from the world size). One per process. While an
/// exception unwinds, MPI is not finalized: abort_job() must then end the job.
class MpiSession {
 public:
  explicit MpiSession(WithoutLauncher meaning = WithoutLauncher::refuse);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  const Communicator& world() const { return *world_; }

 private:
  std::optional<Communicator> world_;
  std::chrono::seconds timeout_{};
};

/// Error on ranks that stop because another rank failed: nothing to report, the same exit code.
class PeerFailure : public Error {
 public:
  explicit PeerFailure(ExitCode code) : Error(code, "another rank failed") {}
};

/// Error from an MPI call of a rank that has peers. MPI's codes do not tell a lost peer from a
/// fault of its own, so the run counts as stopped early and is started again, unless the watchdogs
/// find another cause (Watchdog::await_diagnosis()).
class MpiFailure : public Error {
 public:
  explicit MpiFailure(const std::string& what) : Error(ExitCode::stopped_early, what) {}
};

/// Ends the whole job at once with this exit code: by PMIx_Abort if MPI uses PMIx, which prints
/// nothing, else by MPI_Abort; by exit if there is a single process or MPI is not initialized.
[[noreturn]] void abort_job(ExitCode code);

/// Ends this process within 5 s, even if it is blocked.
void end_process_soon(ExitCode code);

/// Returns the plugin that the program's MPI needs as `srun --mpi=`, from what `srun --mpi=list`
/// lists here (comm/mpi/launch.hpp). Runs srun, so call it on one rank.
std::string srun_plugin();

/// Returns the MPI library's name and version, for --version.
std::string mpi_version();

/// Values for `--device`. automatic: GPUs if every rank sees one, the CPU if none does.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Chooses this process's device. Ranks on a machine that see the same GPUs divide them
/// (device::gpus_of_ranks), so the launcher may show each rank all GPUs, only its own, or those
/// near its cores. Refuses two ranks on one GPU (LLAMESH_SHARE_GPU=1 allows it, for tests), and a
/// job in which only some ranks see a GPU, or in which a driver fails to list its GPUs. Must be
/// called before any buffer or stream is created. Collective.
void choose_device(const Communicator& world, DeviceChoice choice);

}  // namespace llamesh::comm
