#pragma once

#include <algorithm>
#include <vector>

#include "core/error.hpp"

namespace llamesh {

/// The middle one of these values, the upper one of an even number of them.
inline double median(std::vector<double> values) {
  expects(!values.empty(), "a median of no values");
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace llamesh
