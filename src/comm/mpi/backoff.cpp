#include "comm/mpi/backoff.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "comm/mpi/session.hpp"

namespace llamesh::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr int yields_before_sleep = 256;

constexpr int not_stopped = -1;
std::atomic<int> stop_code{not_stopped};

/// Returns the sleep between polls after waiting this long: 1/64 of the wait, at most 1 ms.
nanoseconds sleep_after(Clock::duration waited) {
  return std::clamp(nanoseconds(waited) / 64, nanoseconds(20'000), nanoseconds(1'000'000));
}

}  // namespace

void stop_waiting(ExitCode code) noexcept {
  int expected = not_stopped;
  stop_code.compare_exchange_strong(expected, static_cast<int>(code));
}

void throw_if_stopped() {
  const int code = stop_code.load(std::memory_order_relaxed);
  if (code != not_stopped) throw PeerFailure(static_cast<ExitCode>(code));
}

void Backoff::pause() {
  throw_if_stopped();
  if (++pauses_ <= yields_before_sleep) {
    if (pauses_ == 1) since_ = Clock::now();
    sched_yield();
    return;
  }
  std::this_thread::sleep_for(sleep_after(Clock::now() - since_));
}

void Backoff::reset() {
  pauses_ = 0;
}

}  // namespace llamesh::comm

/// Replaces libc's sched_yield() in the whole process because MPI's blocking calls (MPI_Comm_split,
/// MPI_Win_allocate_shared, MPI-IO) yield for as long as they wait (mpi_yield_when_idle). If ranks
/// share cores, several processes that only yield starve the others on a core (on Linux 6.18 for 20
/// to 60 s). So only the first calls in a row yield; later ones sleep.
extern "C" int sched_yield() noexcept {
  using Clock = std::chrono::steady_clock;
  constexpr int yields_in_a_row = 64;
  constexpr std::chrono::microseconds longest_gap{100};  // between calls in a row
  constexpr std::chrono::microseconds sleep{20};
  static thread_local Clock::time_point last;
  static thread_local int calls = 0;
  calls = Clock::now() - last < longest_gap ? calls + 1 : 1;
  if (calls <= yields_in_a_row)
    syscall(SYS_sched_yield);
  else
    std::this_thread::sleep_for(sleep);
  last = Clock::now();
  return 0;
}
