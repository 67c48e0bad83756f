#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// Policy for steps whose loss or gradient norm is not finite (train.on_nonfinite).
class NonfiniteSteps {
 public:
  /// Consecutive skipped steps that end the run: a bad batch passes, bad weights do not.
  static constexpr std::int64_t max_in_a_row = 10;

  /// `host_of`: by rank.
  NonfiniteSteps(OnNonfinite action, std::vector<std::string> host_of)
      : action_(action), host_of_(std::move(host_of)) {}

  /// Resets the count, after a step that makes its update.
  void on_finite() { in_a_row_ = 0; }

  /// Handles any other step, given each rank's loss sum and sum of squared gradients. Returns a
  /// line about it if it is skipped. Throws (exit 93) if the run must end. `faults` describes wrong
  /// results that a rank has computed since the start (ReplayCheck::healed()); the line names them
  /// instead of the ranks to which they have spread.
  std::string on_nonfinite(std::int64_t step, double loss, double grad_norm,
                           std::span<const double> losses, std::span<const double> squared_norms,
                           std::string_view faults = {});

  /// Returns the first rank with non-finite values, which reports them; 0 if all are finite.
  static int first_rank(std::span<const double> losses, std::span<const double> squared_norms);

 private:
  std::string where(const char* what, std::span<const double> by_rank) const;

  OnNonfinite action_;
  std::vector<std::string> host_of_;
  std::int64_t in_a_row_ = 0;
  std::int64_t in_all_ = 0;  ///< since this launch
};

}  // namespace llamesh::train
