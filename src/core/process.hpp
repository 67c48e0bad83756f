#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llamesh {

/// This process's rank, world size and host. Set once by comm::MpiSession; rank 0 of 1 before.
struct Process {
  int rank = 0;
  int world_size = 1;
  std::string host;
};

/// This process; messages and logs take rank and host from it.
Process& this_process();

/// Destination of a program's error output.
enum class ErrorOutput : std::uint8_t { dropped, joined };

/// Runs the program in the first word, found along PATH, without a shell. Returns its standard
/// output; empty if it cannot be run.
std::string output_of(const std::vector<std::string>& command,
                      ErrorOutput errors = ErrorOutput::dropped);

/// Returns this process's command line as a shell takes it; empty if /proc does not tell.
std::string command_line();

/// Returns the number in an environment variable, as text: digits only. Empty if there is none.
/// Slurm's ids and counts become part of file names and of other programs' arguments.
std::string number_in_environment(const char* variable);

/// llamesh version, and the commit it was built from, as far as CMake knew it.
const char* version();
const char* commit();

/// Installs handlers that record the signals asking a program to end, so that a run can save and
/// stop: SIGTERM, SIGUSR1 and SIGUSR2 (Slurm's --signal, Grid Engine's soft limits), SIGXCPU,
/// SIGINT, SIGHUP and SIGPIPE. A second SIGINT kills, because a user at a terminal means it.
/// Writing to a closed pipe fails with EPIPE. Call this first in main: Slurm may signal in a job's
/// first second. Clears earlier records.
///
/// The handlers have their own stack. While oneDNN's compiled GEMM kernels run, the stack pointer
/// may point into their workspace on the heap, and a handler on that stack would overwrite what
/// lies below: weights, or the heap's bookkeeping.
void catch_stop_signals();

/// Blocks these signals on the calling thread. The main thread, which has the handlers' stack,
/// receives them; threads that compute must not.
void block_stop_signals() noexcept;

/// From now on, handlers also set bit n in `*bits` for signal n; sets those received so far at
/// once. In shared memory the kernel preserves them when the process is killed. Null: nowhere.
void record_stop_signals_in(std::uint32_t* bits) noexcept;

/// Returns the first received signal in the order above, or 0. Any thread may call it.
int received_stop_signal() noexcept;

}  // namespace llamesh
