#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/enum_names.hpp"

namespace llamesh::model {

/// Products of the layers' linear layers, for outputs and input gradients. Those of weight
/// gradients, head, routers, adapters and attention have the parameters' dtype in any case.
enum class LinearPrecision : std::uint8_t {
  same,          ///< in the parameters' dtype
  fp8,           ///< in FP8 with a scale per row (ops.hpp), which CPUs emulate
  fp8_emulated,  ///< the same numbers, multiplied in the parameters' dtype on GPUs as well
};
inline EnumNames<LinearPrecision> enum_names(LinearPrecision) {
  using enum LinearPrecision;
  return {{{"same", same}, {"fp8", fp8}, {"fp8_emulated", fp8_emulated}}};
}

/// Types of a model's numbers.
struct Precision {
  Precision(DType parameters,  // NOLINT(google-explicit-constructor)
            LinearPrecision linear = LinearPrecision::same)
      : dtype(parameters), linear(linear) {}
  DType dtype;  ///< parameters and activations
  LinearPrecision linear;
};

}  // namespace llamesh::model
