#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/launch.hpp"

namespace llamesh::comm {

/// How long MPI_Init and MPI_Finalize may wait for the other ranks: LLAMESH_MPI_TIMEOUT in seconds,
/// 0: no limit; 300 s when it is not set. An environment variable, since no input is read before.
/// Throws a user error when it is not an integer. Pure.
std::chrono::seconds mpi_timeout(const Environment& environment);

/// Ends this process with exit 75 when an MPI call without a timeout does not return in time, since
/// a rank that is stopped or lost never arrives. Rank 0 prints what was being done; the others only
/// when rank 0 has not ended the job by then.
class TimeLimit {
 public:
  /// `doing`: "MPI_Init". `limit` 0: none. `rank`: by the launcher.
  TimeLimit(std::string doing, std::chrono::seconds limit, int rank);

 private:
  void watch(const std::stop_token& stop);

  std::string doing_;
  std::chrono::seconds limit_;
  int rank_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  ///< last, so that it starts when all else is constructed
};

}  // namespace llamesh::comm
