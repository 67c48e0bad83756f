#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/description/parameters.hpp"
#include "model/layers/arena.hpp"
#include "ops/calls.hpp"

namespace llamesh::model {

/// Memory for the operands of one product in FP8, used by all layers in turn. Empty: linear layers
/// have the parameters' dtype.
class Fp8Operands {
 public:
  Fp8Operands() = default;
  /// Takes memory for any linear layer of the table's layers, with `rows` inputs.
  Fp8Operands(ArenaAllocator& plan, const ParameterTable& table, std::int64_t rows);
  explicit operator bool() const { return static_cast<bool>(weight_.values); }

  /// Return x (M, I) or a weight (O, I) or (N, O, I), quantized by rows.
  ops::Fp8Matrix input(device::Stream& stream, const Tensor& x) const;
  ops::Fp8Matrix weight(device::Stream& stream, const Tensor& w) const;
  /// Returns the weight transposed, (I, O) or (N, I, O), quantized by rows.
  ops::Fp8Matrix transposed_weight(device::Stream& stream, const Tensor& w) const;

 private:
  ops::Fp8Matrix input_, weight_;
};

}  // namespace llamesh::model
