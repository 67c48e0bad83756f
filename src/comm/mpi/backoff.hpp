#pragma once

#include <chrono>

#include "core/error.hpp"

namespace llamesh::comm {

/// Backoff for polling other ranks without taking the core from computing ones. It yields at first,
/// then sleeps for intervals that grow to 1/64 of the wait, at most 1 ms: long waits use almost no
/// CPU and end at most 1.6 % late. Every pause throws PeerFailure once stop_waiting() was called in
/// this process. MPI's own blocking calls also yield and then sleep: this file's source replaces
/// sched_yield().
class Backoff {
 public:
  void pause();
  /// Notes progress: the next pauses yield again before sleeping.
  void reset();

 private:
  int pauses_ = 0;
  std::chrono::steady_clock::time_point since_;  ///< time of the first pause
};

/// Makes every wait for other ranks in this process throw PeerFailure with this code from now on;
/// the first call's code counts. Called when an exception tears the process down: peers will not
/// arrive any more, and the worker threads must be joined before the error can be printed and the
/// job ended. Also called when another thread ends the job: whichever thread is last, the exit code
/// is the same.
void stop_waiting(ExitCode code = ExitCode::internal_error) noexcept;

/// Throws if stop_waiting() was called.
void throw_if_stopped();

}  // namespace llamesh::comm
