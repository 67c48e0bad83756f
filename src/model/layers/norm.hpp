#pragma once

#include "core/tensor.hpp"
#include "model/layers/activations.hpp"
#include "model/layers/block.hpp"
#include "model/layers/weights.hpp"
#include "ops/calls.hpp"

/// Norms of the residual stream and of heads.
namespace llamesh::model {

/// The first to read what a norm has written.
enum class NormReader : bool { linear, other };

/// y = norm(in.x + in.delta) on rows of the residual stream. If there is a delta, writes the sum to
/// `sum`. The caller enters the module.
void norm(const BlockContext& ctx, const WeightModule& norm, const Residual& in, Tensor sum,
          Tensor y, const NormStatistics& statistics, NormReader reader = NormReader::other);

/// Returns the call that computes y = norm(x): LayerNorm if the statistics have a mean, otherwise
/// RMSNorm. The caller enters the module.
ops::RowNormCall norm_call(const BlockContext& ctx, const WeightModule& norm, Tensor x, Tensor y,
                           const NormStatistics& statistics);

/// Tensors in a norm's backward pass, (M', D').
struct NormGradients {
  Tensor x;   ///< what was normalized
  Tensor dy;  ///< gradient of the result
  Tensor dx;
};

/// Returns the call for its backward pass.
ops::RowNormBackwardCall norm_backward_call(const BlockContext& ctx, const WeightModule& norm,
                                            const NormGradients& gradients,
                                            const NormStatistics& statistics,
                                            Accumulate accumulate_dx);

/// dx = or += the gradient of the norm's input; also computes the gradients of its parameters.
void norm_backward(const BlockContext& ctx, const WeightModule& norm,
                   const NormGradients& gradients, const NormStatistics& statistics,
                   Accumulate accumulate_dx);

}  // namespace llamesh::model
