#include "comm/backoff.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "comm/session.hpp"

namespace llamesh::comm {
namespace {

constexpr int yields_before_sleep = 256;
constexpr std::chrono::microseconds first_sleep{5};
constexpr std::chrono::microseconds longest_sleep{100};

std::atomic<bool> stopped{false};

}  // namespace

void stop_waiting() noexcept {
  stopped.store(true);
}

void throw_if_stopped() {
  if (stopped.load(std::memory_order_relaxed)) throw PeerFailure(ExitCode::internal_error);
}

void Backoff::pause() {
  throw_if_stopped();
  if (++pauses_ <= yields_before_sleep) {
    sched_yield();
    return;
  }
  sleep_ = std::clamp(2 * sleep_, first_sleep, longest_sleep);
  std::this_thread::sleep_for(sleep_);
}

void Backoff::reset() {
  pauses_ = 0;
  sleep_ = std::chrono::microseconds{0};
}

}  // namespace llamesh::comm

/// Replaces libc's sched_yield() in the whole process because of MPI's blocking calls
/// (MPI_Comm_split, MPI_Win_allocate_shared, MPI-IO), which yield for as long as they wait
/// (mpi_yield_when_idle). Where ranks share cores, several processes that only yield starve the
/// others on a core (on Linux 6.18 for 20 to 60 s). So only the first yields in a row yield; those
/// that follow sleep.
extern "C" int sched_yield() noexcept {
  using Clock = std::chrono::steady_clock;
  constexpr int yields_in_a_row = 64;
  constexpr std::chrono::microseconds longest_gap{100};  // between calls of one row
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
