#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace llamesh::train {

/// Detector for ranks that are slow by themselves. A step takes as long as its slowest rank, and
/// all ranks look equally slow, since they wait for one another. So every 20 steps, or every five
/// seconds if that is longer, each rank's median time without waits is compared with the median
/// over all ranks. On a machine with more load than cores, ranks take turns, and a healthy one may
/// look slow for a while: it must be slow several times in a row.
class Stragglers {
 public:
  static constexpr std::int64_t steps = 20;
  /// Minimum window in seconds: in a shorter one, momentary other work on a node makes a rank look
  /// slow.
  static constexpr double window = 5;
  static constexpr double factor = 1.2;  ///< slow if above this multiple of the median
  /// Minimum excess in seconds per step: short steps vary by themselves.
  static constexpr double least = 0.01;
  /// Load per core above which a machine is busy with more than the ranks' own threads.
  static constexpr double busy = 1.25;
  static constexpr int comparisons_if_busy = 3;  ///< in a row, in which the rank must be slow

  /// `host_of`: by rank.
  explicit Stragglers(std::vector<std::string> host_of);

  /// Returns a line for each rank that has become slow: "rank 3 on node2 is slow: ...". Called
  /// after each step with each rank's seconds without waits for others, and its machine's load per
  /// core (empty: unknown). A rank that stays slow is not reported again.
  std::vector<std::string> observe(std::span<const double> own_seconds,
                                   std::span<const double> load_per_core = {});

 private:
  std::vector<std::string> host_of_;
  std::vector<std::vector<double>> seconds_;  ///< by rank: for the steps since the last comparison
  double elapsed_ = 0;                        ///< total for the slowest rank in these steps
  std::vector<int> times_slow_;               ///< by rank: comparisons in a row
  std::vector<bool> reported_;                ///< by rank: since it became slow
};

}  // namespace llamesh::train
