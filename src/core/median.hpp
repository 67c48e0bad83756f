#pragma once

#include <algorithm>
#include <vector>

#include "core/error.hpp"

namespace llamesh {

/// Returns the median; the upper one for an even number of values.
inline double median(std::vector<double> values) {
  expects(!values.empty(), "a median of no values");
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace llamesh
