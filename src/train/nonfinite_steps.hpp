#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/run_inputs.hpp"

namespace llamesh::train {

/// The value as it is printed: the sign of a NaN means nothing.
inline double without_nan_sign(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

/// Decides what becomes of a step whose loss or gradient norm is not finite (train.on_nonfinite).
class NonfiniteSteps {
 public:
  /// As many skipped steps in a row end the run: one bad batch passes, weights that are bad do not.
  static constexpr std::int64_t most_in_a_row = 10;

  /// `host_of`: by rank.
  NonfiniteSteps(OnNonfinite action, std::vector<std::string> host_of)
      : action_(action), host_of_(std::move(host_of)) {}

  /// After a step that is to make its update.
  void on_finite() { in_a_row_ = 0; }

  /// Of another step, with each rank's sum of losses and sum of squared gradients: the line that
  /// tells of it, if it is skipped. Throws (exit 93) where the run is to end.
  std::string on_nonfinite(std::int64_t step, double loss, double grad_norm,
                           std::span<const double> losses, std::span<const double> squared_norms);

  /// The first rank whose values of a step are not finite, and that reports it; 0 where all are.
  static int first_rank(std::span<const double> losses, std::span<const double> squared_norms);

 private:
  std::string where(const char* what, std::span<const double> by_rank) const;

  OnNonfinite action_;
  std::vector<std::string> host_of_;
  std::int64_t in_a_row_ = 0;
  std::int64_t in_all_ = 0;  ///< since this start
};

}  // namespace llamesh::train
