#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/mpi/launch.hpp"

namespace llamesh::comm {

/// How long MPI_Init and MPI_Finalize may wait for the other ranks: LLAMESH_MPI_TIMEOUT in seconds,
/// 0: no limit. When it is not set: 60 s, and 60 s more for each full 1,000 ranks, up to 600 s. An
/// environment variable, since no input is read before. Throws a user error when it is not an
/// integer. `ranks`: 0 when not known. Pure.
std::chrono::seconds mpi_timeout(const Environment& environment, int ranks);

/// How long a rank may send no heartbeat until it counts as lost: LLAMESH_SILENCE in seconds, or
/// 30 s. Throws a user error when it is not an integer, or below 3. Pure.
std::chrono::seconds silence_limit(const Environment& environment);

/// Ends the job with exit 75 when an MPI call without a timeout does not return in time, since a
/// rank that is stopped or lost never arrives; and 4 s after this rank was told to end, as the
/// launcher tells all when one has died. Rank 0 prints what was being done; the others only when
/// rank 0 has not ended the job by then.
class TimeLimit {
 public:
  /// `doing`: "MPI_Init". `limit` 0: none. `rank`: by the launcher. `told_to_end` is called on
  /// another thread; without it this rank never is.
  TimeLimit(std::string doing, std::chrono::seconds limit, int rank,
            std::function<bool()> told_to_end = {});

 private:
  void watch(const std::stop_token& stop);
  [[noreturn]] void end_job(const std::string& why) const;

  std::string doing_;
  std::chrono::seconds limit_;
  int rank_;
  std::function<bool()> told_to_end_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  ///< last, so that it starts when all else is constructed
};

}  // namespace llamesh::comm
