#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "core/error.hpp"

namespace llamesh::comm {

/// Initializes MPI (MPI_THREAD_MULTIPLE, errors returned and checked) and finalizes it; writes rank
/// and host to this_process(). A rank that never calls MPI_Init or MPI_Finalize ends the job
/// (comm/time_limit.hpp). Throws a user error when srun started the ranks without a PMI, as
/// singletons (SLURM_NTASKS differs from the world's size). One per process. While an exception
/// unwinds, MPI is not finalized: abort_job() must end the job then.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  const Communicator& world() const { return *world_; }

 private:
  std::optional<Communicator> world_;
  std::chrono::seconds timeout_{};
};

/// Thrown on ranks that stop because another rank failed: nothing to report, the same exit code.
class PeerFailure : public Error {
 public:
  explicit PeerFailure(ExitCode code) : Error(code, "another rank failed") {}
};

/// Ends the whole job at once with this exit code: by PMIx_Abort where MPI uses PMIx, which prints
/// nothing, else MPI_Abort; by exit where there is one process or MPI is not initialized.
[[noreturn]] void abort_job(ExitCode code);

/// Ends this process in 5 s, even if it is blocked.
void end_process_soon(ExitCode code);

/// Name and version of the MPI library, for --version.
std::string mpi_version();

}  // namespace llamesh::comm
