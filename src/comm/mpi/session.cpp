#include "comm/mpi/session.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "comm/calls/flight_record.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/mpi/launch.hpp"
#include "comm/mpi/mpi.hpp"
#include "comm/mpi/process_limits.hpp"
#include "comm/mpi/time_limit.hpp"
#include "core/process.hpp"

namespace llamesh::comm {
namespace {

/// Defaults of Open MPI for ranks that wait on the cores on which they compute; variables that the
/// user set are kept.
void set_mpi_defaults() {
  // MPI's blocking calls (MPI_Comm_split, MPI_Win_free, MPI-IO) yield the core while they wait.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  // No shared file pointers, which HDF5 does not use. Between nodes OMPIO keeps one in a lock file
  // beside the data; on a full disk rank 0 fails to write it, inside MPI_File_open, and all ranks
  // wait there for ever. Of the components sm needs no file there, and below 0 none is selected.
  setenv("OMPI_MCA_sharedfp", "sm", /*overwrite=*/0);
  setenv("OMPI_MCA_sharedfp_sm_priority", "-1", /*overwrite=*/0);
}

/// MPI_Finalize was called. MPICH cannot abort a job from then on.
std::atomic<bool> finalizing = false;

bool mpi_runs() {
  if (finalizing) return false;
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

/// Asks the launcher to end all ranks, as MPI_Abort of an Open MPI on PMIx does, but without the
/// page of text that MPI_Abort prints below the reason. False where this MPI has no PMIx.
bool abort_by_pmix(ExitCode code) {
  // pmix_status_t PMIx_Abort(int status, const char msg[], pmix_proc_t procs[], size_t nprocs); no
  // procs: all of the job. MPI loads the library at run time, if at all.
  using Abort = int (*)(int, const char*, void*, std::size_t);
  const auto abort = reinterpret_cast<Abort>(dlsym(RTLD_DEFAULT, "PMIx_Abort"));
  return abort != nullptr && abort(static_cast<int>(code), "", nullptr, 0) == 0;
}

/// Under Slurm one process prints the problem, the others end quietly with the same exit code.
void refuse(const Launch& launch, int world_size) {
  if (launch_problem(launch, world_size).empty()) return;
  if (!launch.reports_world_of_one()) throw PeerFailure(ExitCode::bad_input);
  fail(ExitCode::bad_input, "{}", launch_problem(launch, world_size, srun_plugin()));
}

/// Limits may differ between nodes. As a rule they do not, and rank 0's line ends the job first.
void check_limits(const Launch& launch) {
  try {
    check_process_limits(launch, std::getenv, mpi_version());
  } catch (const Error& error) {
    if (launch.rank == 0) throw;
    std::this_thread::sleep_for(std::chrono::seconds(2));
    fail(error.code(), "rank {}: {}", launch.rank, error.what());
  }
}

}  // namespace

MpiSession::MpiSession(WithoutLauncher meaning) {
  const auto launch = detect_launch(std::getenv);
  try {
    timeout_ = mpi_timeout(std::getenv, launch.ranks);
    static_cast<void>(silence_limit(std::getenv));  // read later, by the watchdog
  } catch (const Error& error) {  // every rank has the same environment, one reports
    if (launch.rank != 0) throw PeerFailure(error.code());
    throw;
  }
  check_limits(launch);
  const TimeLimit limit("MPI_Init", timeout_, launch.rank,
                        [] { return received_stop_signal() == SIGTERM; });
  // Without a PMI MPI_Init would end every task with a page of text.
  if (!launch.wired && launch.variable == "SLURM_STEP_NUM_TASKS") refuse(launch, 1);
  set_mpi_defaults();
  int granted = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  auto& self = this_process();
  check(MPI_Comm_rank(MPI_COMM_WORLD, &self.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &self.world_size), "MPI_Comm_size");
  if (meaning == WithoutLauncher::refuse || !launch.is_shell_in_allocation())
    refuse(launch, self.world_size);
  validate(
      granted == MPI_THREAD_MULTIPLE,
      "this MPI grants thread level {} where llamesh needs {} (MPI_THREAD_MULTIPLE); use an MPI "
      "built with threads",
      granted, static_cast<int>(MPI_THREAD_MULTIPLE));
  MPI_Comm world = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  world_.emplace(std::make_unique<Communicator::Handle>(world, nullptr, "world"));
}

MpiSession::~MpiSession() {
  // From here on the job is over: srun --kill-on-bad-exit sends this when the first rank has ended,
  // and must not change the exit code of the others.
  std::signal(SIGTERM, SIG_IGN);
  if (std::uncaught_exceptions() > 0) return;
  const TimeLimit limit("MPI_Finalize", timeout_, this_process().rank);
  world_.reset();
  finalizing = true;
  MPI_Finalize();
}

void end_process_soon(ExitCode code) {
  // Not by a thread: the process may be ending because no more threads can be started.
  static std::atomic<int> exit_code;
  exit_code = static_cast<int>(code);
  FlightRecorder::instance().end(exit_code);
  std::signal(SIGALRM, [](int) { _exit(exit_code); });
  alarm(5);
}

void abort_job(ExitCode code) {
  stop_waiting(code);
  std::fflush(nullptr);
  end_process_soon(code);  // the launcher is asked to end the ranks, and may itself be gone
  // During MPI_Init PMIx is already initialized.
  if (!abort_by_pmix(code) && mpi_runs() && this_process().world_size > 1)
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

std::string srun_plugin() {
  return srun_plugin(mpi_version(),
                     output_of({"timeout", "5", "srun", "--mpi=list"}, ErrorOutput::joined));
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  int major = 0;
  int minor = 0;
  MPI_Get_version(&major, &minor);
  std::string library(text.data(), static_cast<std::size_t>(length));
  library = library.substr(0, library.find_first_of(",\n"));
  std::ranges::replace(library, '\t', ' ');  // MPICH
  return fmt::format("{} (MPI {}.{})", library, major, minor);
}

}  // namespace llamesh::comm
