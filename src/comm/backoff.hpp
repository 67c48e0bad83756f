#pragma once

#include <chrono>

namespace llamesh::comm {

/// How a thread polls for other ranks without holding the core from those that compute: it yields
/// at first, then sleeps for intervals that grow with the wait, to 1/64 of it and to 1 ms: a long
/// wait ends hardly later and takes next to nothing of a core. Every pause throws PeerFailure once
/// stop_waiting() was called in this process. MPI's own blocking calls yield and then sleep too:
/// this file's source replaces sched_yield().
class Backoff {
 public:
  void pause();
  /// There was progress: poll without sleeping again.
  void reset();

 private:
  int pauses_ = 0;
  std::chrono::steady_clock::time_point since_;  ///< of the first pause
};

/// Makes every wait for other ranks in this process throw from now on. Called when an exception
/// tears the process down: the peers will not arrive any more, and the worker threads must be
/// joined before the error can be printed and the job ended.
void stop_waiting() noexcept;

/// Throws PeerFailure when stop_waiting() was called.
void throw_if_stopped();

}  // namespace llamesh::comm
