#pragma once

#include <cmath>
#include <limits>

namespace llamesh {

/// Drops a NaN's meaningless sign, which would be printed: "-nan".
inline double without_nan_sign(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace llamesh
