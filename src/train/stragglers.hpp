#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace llamesh::train {

/// Finds ranks that are slower than the others by themselves: a step takes as long as its slowest
/// rank, and all ranks look equally slow, since they wait for one another. Every 20 steps, or
/// every five seconds where those take less, the median of each rank's own seconds is compared with
/// the median of all ranks'.
class Stragglers {
 public:
  static constexpr std::int64_t steps = 20;
  /// Seconds: in less, what else a node does for a moment makes a rank look slow.
  static constexpr double window = 5;
  static constexpr double factor = 1.2;  ///< of the median from which on a rank is slow
  /// Seconds of a step by which it has to be slower too: short ones vary by themselves.
  static constexpr double least = 0.01;

  /// `host_of`: by rank.
  explicit Stragglers(std::vector<std::string> host_of);

  /// After each step: each rank's seconds without its waits for others. Returns a line for each
  /// rank that has become slow: "rank 3 on node2 is slow: ...". One that stays slow is not named
  /// again.
  std::vector<std::string> observe(std::span<const double> own_seconds);

 private:
  std::vector<std::string> host_of_;
  std::vector<std::vector<double>> seconds_;  ///< by rank: of the steps since the last comparison
  double elapsed_ = 0;                        ///< seconds of the slowest rank in these steps
  std::vector<bool> slow_;
};

}  // namespace llamesh::train
