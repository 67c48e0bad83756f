#pragma once

#include <cmath>
#include <cstdint>

namespace llamesh::ops {

/// A sum over squares that is the same in any order and any division. Each square, which is exact
/// in double, is split into large units, 2^-24 4^exponent, and, rounded, small ones, 2^-48
/// 4^exponent, where 2^exponent is above all magnitudes. Units are counted with integers, whose
/// sums are exact for up to 2^39 numbers.
struct SquareUnits {
  std::int64_t large = 0, small = 0;

  struct Sizes {
    double large, small;
  };
  /// Returns the units' sizes.
  static Sizes sizes(int exponent) {
    return {std::ldexp(1.0, 2 * exponent - 24), std::ldexp(1.0, 2 * exponent - 48)};
  }
  /// Returns an exponent for numbers up to this magnitude.
  static int exponent_above(float largest) { return largest > 0 ? std::ilogb(largest) + 1 : 0; }

  SquareUnits& operator+=(const SquareUnits& other) {
    large += other.large;
    small += other.small;
    return *this;
  }
  bool operator==(const SquareUnits&) const = default;
  /// Returns the sum.
  double value(int exponent) const {
    const auto size = sizes(exponent);
    return static_cast<double>(large) * size.large + static_cast<double>(small) * size.small;
  }
};

}  // namespace llamesh::ops
