#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace llamesh::train {

/// The durations of the startup phases, for one line in the log. The first, "launch", lasts from
/// LLAMESH_LAUNCH_TIME (seconds since 1970, set by the job script before srun), else from the start
/// of this process, to here.
class Startup {
 public:
  Startup();
  /// The phase that began with the last call ends.
  void end_phase(std::string name);
  /// By name, in seconds, in the order in which they came.
  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }
  /// Since the launch, in seconds.
  double seconds() const;
  /// "launch 0.31 s, MPI_Init 0.12 s, ...; 1.20 s in all"
  std::string describe() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<std::pair<std::string, double>> phases_;
  Clock::time_point last_;
};

}  // namespace llamesh::train
