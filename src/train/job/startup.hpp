#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace llamesh::train {

/// Durations of the startup phases, for one log line. The first, "launch", lasts from
/// LLAMESH_LAUNCH_TIME (seconds since 1970, set by the job script before srun), else from the
/// process start, to this object's construction.
class Startup {
 public:
  Startup();
  /// Ends the phase that began with the last call.
  void end_phase(std::string name);
  /// Returns names and durations in seconds, in order.
  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }
  /// Returns the seconds since the launch.
  double seconds() const;
  /// Returns "launch 0.31 s, MPI_Init 0.12 s, ...; 1.20 s in all".
  std::string describe() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<std::pair<std::string, double>> phases_;
  Clock::time_point last_;
};

}  // namespace llamesh::train
