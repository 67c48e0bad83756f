#pragma once

#include <fmt/format.h>

#include <limits>
#include <string>

namespace llamesh {

/// Allowed range for a number.
struct Range {
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  double low = -infinity;
  double high = infinity;
  bool low_open = false;
  bool high_open = false;

  bool contains(double value) const {
    return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
  }
  /// Formats the range: "[0, 1)" or ">= 1".
  std::string describe() const {
    if (high == infinity) return fmt::format("{} {}", low_open ? ">" : ">=", low);
    return fmt::format("{}{}, {}{}", low_open ? '(' : '[', low, high, high_open ? ')' : ']');
  }
};

constexpr Range at_least(double low) {
  return {.low = low};
}
constexpr Range above(double low) {
  return {.low = low, .low_open = true};
}
constexpr Range from_to(double low, double high) {
  return {.low = low, .high = high};
}
/// Returns (low, high].
constexpr Range above_to(double low, double high) {
  return {.low = low, .high = high, .low_open = true};
}
/// Returns [low, high).
constexpr Range from_below(double low, double high) {
  return {.low = low, .high = high, .high_open = true};
}

}  // namespace llamesh
