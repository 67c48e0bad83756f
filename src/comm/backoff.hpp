#pragma once

#include <chrono>

namespace llamesh::comm {

/// How a thread polls for other ranks without holding the core from those that compute: it yields
/// at first, then sleeps for intervals that grow to 100 us. Every pause throws PeerFailure once
/// stop_waiting() was called in this process. MPI's own blocking calls wait in the same way: this
/// file's source replaces sched_yield().
class Backoff {
 public:
  void pause();
  /// There was progress: poll without sleeping again.
  void reset();

 private:
  int pauses_ = 0;
  std::chrono::microseconds sleep_{0};
};

/// Makes every wait for other ranks in this process throw from now on. Called when an exception
/// tears the process down: the peers will not arrive any more, and the worker threads must be
/// joined before the error can be printed and the job ended.
void stop_waiting() noexcept;

/// Throws PeerFailure when stop_waiting() was called.
void throw_if_stopped();

}  // namespace llamesh::comm
