#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/description/parameters.hpp"
#include "model/layers/arena.hpp"
#include "model/layers/weights.hpp"
#include "ops/calls.hpp"

namespace llamesh::model {

/// A linear layer's weight (O, I), or (N, O, I), as Weights has it.
struct StoredWeight {
  Tensor values;       ///< in the compute dtype or e4m3
  Tensor scales = {};  ///< (O) or (N O) fp32 beside e4m3 numbers

  StoredWeight(Weights& weights, ParameterId id)
      : values(weights.parameter(id)), scales(weights.scales(id)) {}
  bool is_fp8() const { return values.dtype() == DType::e4m3; }
};

/// Memory for the operands of one product in FP8, used by all layers in turn.
class Fp8Operands {
 public:
  /// Takes memory for any linear layer of the table's layers, with `rows` inputs.
  Fp8Operands(ArenaAllocator& plan, const ParameterTable& table, std::int64_t rows);

  /// Returns where a kernel that writes x (M, I) may leave it quantized by rows. The next input(),
  /// if it is for x, takes that.
  ops::Fp8Matrix left_as_input(const Tensor& x);
  /// Returns x (M, I), quantized by rows.
  ops::Fp8Matrix input(device::Stream& stream, const Tensor& x);
  /// Returns a weight quantized by rows: its own e4m3 numbers, if it has them.
  ops::Fp8Matrix weight(device::Stream& stream, const StoredWeight& w) const;
  /// Returns the weight transposed, (I, O) or (N, I, O), quantized by rows.
  ops::Fp8Matrix transposed_weight(device::Stream& stream, const StoredWeight& w) const;

 private:
  ops::Fp8Matrix input_, weight_;
  Tensor left_;  ///< the tensor that `input_` has already; empty: none
};

}  // namespace llamesh::model
