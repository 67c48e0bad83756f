#pragma once

#include <cmath>
#include <optional>

namespace llamesh::sharding {

/// Sums of squares of numbers, and of the errors that quantization made in them.
struct QuantizationSquares {
  double errors = 0, numbers = 0;

  QuantizationSquares& operator+=(const QuantizationSquares& other) {
    errors += other.errors;
    numbers += other.numbers;
    return *this;
  }
  /// Returns the errors' norm over that of the numbers. Empty: there were none.
  std::optional<double> relative_error() const {
    return numbers > 0 ? std::optional(std::sqrt(errors / numbers)) : std::nullopt;
  }
};

/// The same for all that a rank has quantized.
struct QuantizedTraffic {
  QuantizationSquares weights;    ///< gathered
  QuantizationSquares gradients;  ///< scattered to the ranks that share them
  QuantizationSquares replicas;   ///< gradients added up over replicas
  QuantizationSquares outer;      ///< exchanged by replicas that train apart

  QuantizedTraffic& operator+=(const QuantizedTraffic& other) {
    weights += other.weights;
    gradients += other.gradients;
    replicas += other.replicas;
    outer += other.outer;
    return *this;
  }
};

}  // namespace llamesh::sharding
