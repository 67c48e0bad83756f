#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace llamesh::ops {

/// A sum of squares that is the same in any order and any division of its numbers: each square is
/// rounded to a multiple of 2^-66 of 4^exponent, where 2^exponent is above all magnitudes, and
/// these multiples are integers, whose sums are exact for up to 2^40 numbers.
struct SquareUnits {
  static constexpr int bits = 22;  ///< from one unit to the next
  /// Multiples of 2^-22, 2^-44 and 2^-66.
  std::array<std::int64_t, 3> units{};

  SquareUnits& operator+=(const SquareUnits& other) {
    for (std::size_t i = 0; i < units.size(); ++i) units[i] += other.units[i];
    return *this;
  }
  bool operator==(const SquareUnits&) const = default;

  /// Returns an exponent for numbers up to this magnitude.
  static int exponent_above(float largest) { return largest > 0 ? std::ilogb(largest) + 1 : 0; }
  /// Returns the sum of squares.
  double value(int exponent) const {
    double sum = 0;
    for (auto i = units.size(); i-- > 0;)
      sum = std::ldexp(sum + static_cast<double>(units[i]), -bits);
    return std::ldexp(sum, 2 * exponent);
  }
};

}  // namespace llamesh::ops
