#pragma once

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/activations.hpp"
#include "model/weights.hpp"

/// One decoder layer:  middle = x + o(attention(rope(qkv(norm(x)))));  y = middle +
/// down(swiglu(gate_up(norm(middle)))).
namespace llamesh::model {

/// The residual stream as a sum that nobody has added up yet: the next norm does it in passing.
struct Residual {
  Tensor x;      ///< (M, D)
  Tensor delta;  ///< (M, D), or empty
};

/// What every layer of a pass is given.
struct BlockContext {
  device::Stream& stream;
  Weights& weights;
  const LlamaConfig& config;
  Pass pass;               ///< of the forward functions: evaluate, forward or recompute
  std::int64_t batch;      ///< B
  std::int64_t sequence;   ///< T
  Tensor cos_sin;          ///< (T, E) fp32
  Tensor document_starts;  ///< (B, T) int32, or empty
  const Scratch& scratch;
};

/// Fills `a` and returns the layer's output; its delta lies in the scratch until the next layer.
Residual block_forward(const BlockContext& context, const LayerIds& layer, const Residual& in,
                       const BlockActivations& a);

/// Turns scratch.d_residual from the gradient of the layer's output into that of its input, and
/// writes the gradients of its weights. Overwrites parts of `a`.
void block_backward(const BlockContext& context, const LayerIds& layer, const BlockActivations& a);

}  // namespace llamesh::model
