#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "core/error.hpp"

namespace llamesh::comm {

/// MPI for the time of its life: initialised (thread multiple, errors returned and checked), the
/// rank and host written into this_process(). A rank that never comes to MPI_Init or MPI_Finalize
/// ends the job (comm/time_limit.hpp). Throws a user error when srun started the ranks one
/// by one (no PMI), seen by SLURM_NTASKS against the size of the world. One per process. While an
/// exception unwinds it, MPI is left alone: abort_job() has to end the job then.
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

/// Thrown on ranks that follow another rank's failure: nothing to report, the same exit code.
class PeerFailure : public Error {
 public:
  explicit PeerFailure(ExitCode code) : Error(code, "another rank failed") {}
};

/// Ends the whole job at once, whatever the other ranks are doing, with this exit code (through
/// PMIx where MPI uses it, so that nothing is printed, or else MPI_Abort; plain exit of a single
/// process or when MPI does not run).
[[noreturn]] void abort_job(ExitCode code);

/// Ends this process by itself in 5 s, whatever else it does or waits for until then.
void end_process_soon(ExitCode code);

/// Name and version of the MPI library, for --version.
std::string mpi_version();

}  // namespace llamesh::comm
