#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace llamesh::train {

/// Detector for losses and gradient norms far above the last 100 steps: by more than 10 times their
/// median absolute deviation, and by a minimum, since among nearly equal values any difference is
/// many deviations.
class Spikes {
 public:
  static constexpr std::int64_t window = 100;
  static constexpr std::int64_t fewest = 50;  ///< values required before anything counts as a spike
  static constexpr double deviations = 10;
  static constexpr double least_loss = 0.5;  ///< nats
  static constexpr double least_norm = 4;    ///< times the median norm
  /// Consecutive steps without a high value after which the next one is a new spike.
  static constexpr std::int64_t calm = 10;

  /// Returns a line for each value that begins a spike: "step 70: the loss is ...". Called after
  /// each step; skips non-finite values.
  std::vector<std::string> observe(std::int64_t step, double loss, double grad_norm);

 private:
  struct Series {
    std::deque<double> recent = {};
    std::int64_t steps_since_high = calm;
  };
  static std::string observe(Series& series, const char* name, double value, double least,
                             double least_of_median);

  Series loss_, grad_norm_;
};

}  // namespace llamesh::train
