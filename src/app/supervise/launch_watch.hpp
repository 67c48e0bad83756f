#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "app/supervise/launch_end.hpp"

namespace llamesh::app {

/// Notifies the supervisor of this launch, if there is one, that the program has started. Call it
/// on rank 0 before MPI_Init.
void announce_start();
/// Notifies it that the program has ended by itself, without an error. Call it on rank 0.
void announce_end();
/// Notifies it that this host cannot serve the run, and why (UnfitHost).
void announce_unfit_host(const std::string& reason);

/// Detects that srun hangs: it waits for a program that does not start, or for tasks whose nodes
/// cannot report that they have ended.
class LaunchWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// Watches a launch that begins now; borrows the record from before it. `mpi_limit` is the time
  /// limit of MPI_Init and MPI_Finalize; 0: none. Rank 0 has five times that to announce its start.
  /// Names the file for that in the environment.
  LaunchWatch(const std::filesystem::path& run_folder, const LaunchRecord& record,
              std::chrono::seconds mpi_limit);
  ~LaunchWatch();
  LaunchWatch(const LaunchWatch&) = delete;
  LaunchWatch& operator=(const LaunchWatch&) = delete;

  /// Returns true once rank 0 has announced its start, or written to the run folder.
  bool has_started();
  /// Returns true once rank 0 has announced its end. srun may return 0 although ranks were killed.
  bool has_ended() const;
  /// A host that cannot serve the run.
  struct Unfit {
    std::string host;
    std::string reason;  ///< one line
  };
  /// Returns the host that has announced that it cannot serve, if one has.
  std::optional<Unfit> unfit_host() const;
  /// Returns the reason to end srun now, or nothing if it may continue. Reads the run folder.
  std::optional<std::string> reason_to_end();

 private:
  std::string announced() const;
  std::optional<std::string> waits_for_start();

  std::filesystem::path started_file_;
  const LaunchRecord& record_;
  std::chrono::seconds start_limit_, grace_after_end_;
  Clock::time_point begun_ = Clock::now();
  bool has_started_ = false;
  std::optional<Clock::time_point> ended_;
};

}  // namespace llamesh::app
