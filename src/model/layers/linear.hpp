#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/tensor.hpp"
#include "model/layers/block.hpp"
#include "model/layers/weights.hpp"
#include "ops/calls.hpp"

/// Linear layers with their biases and adapters.
namespace llamesh::model {

// --- Linear layers that share an input (q, k, v; gate, up; or a single one). If their weights are
// adjacent in memory, as in a ShardLayout unit, they form one matrix and one GEMM; so do the A's of
// their adapters. M tokens, I inputs, O outputs over all layers, s ctx.config.lora's scaling. ---

/// y (M, O) rows = x (M, I) rows times the weights, plus the biases and s (x A^T) B^T for layers
/// with adapters. The first layer fills the first columns of y.
void linear(const BlockContext& ctx, const std::vector<WeightModule>& layers, const Tensor& y,
            const Tensor& x);

/// Some outputs of a layer: rows [first, first + count) of its weight.
struct OutputRange {
  std::int64_t first, count;
};
/// y (M, count) rows = these outputs for x (M, I) rows, without a bias. The caller enters the
/// module.
void linear_part(const BlockContext& ctx, const WeightModule& layer, const OutputRange& outputs,
                 const Tensor& y, const Tensor& x);
/// x (M, I) rows = or += y (M, count) rows times the same rows of the weight: linear_part()
/// transposed.
void linear_part_transposed(const BlockContext& ctx, const WeightModule& layer,
                            const OutputRange& outputs, const Tensor& x, const Tensor& y,
                            Accumulate accumulate);

/// Backward pass in two parts, so that other work can overlap with the second. The layers stay
/// entered for this object's lifetime.
class LinearBackward {
 public:
  LinearBackward(const BlockContext& ctx, const std::vector<WeightModule>& layers);
  /// dx (M, I) = or += dy (M, O) times the weights and the adapters.
  void input(const Tensor& dx, const Tensor& dy, Accumulate accumulate = Accumulate::no);
  /// Computes the gradients of weights, biases and adapters from dy and the forward pass's x. Call
  /// after input().
  void weights(const Tensor& dy, const Tensor& x);

 private:
  const BlockContext& ctx_;
  std::vector<WeightModule> layers_;
  std::deque<UnshardGuard> entered_;
};

// --- Linear layers on the residual stream, whose matrices the tensor ranks split. ---

inline WeightModule without_bias(WeightModule layer) {
  layer.bias.reset();
  return layer;
}

/// y (M', D') = a row-parallel layer's output for this rank's part of its inputs. The ranks'
/// partial outputs are summed, and the bias is added to the sum.
void linear_and_reduce(const BlockContext& ctx, const WeightModule& layer, Tensor y, Tensor input);

/// A gradient in the residual stream: gathered (M, D), and this rank's part (M', D').
struct WholeAndMine {
  Tensor whole, mine;
};

/// Computes the gradient of a bias that is added to the residual stream.
void bias_backward(const BlockContext& ctx, ParameterId bias, Tensor dy);

/// Backward pass for linear_and_reduce(): d_input and the gradients of weight and bias from the
/// output's gradient dy. Calls between() before the weight's.
template <class Between>
void reduced_linear_backward(const BlockContext& ctx, const WeightModule& layer, Tensor d_input,
                             const WholeAndMine& dy, Tensor input, Between between) {
  const UnshardGuard guard(ctx.weights, layer.module, Pass::backward);
  LinearBackward backward(ctx, {without_bias(layer)});
  backward.input(d_input, dy.whole);
  between();
  backward.weights(dy.whole, input);
  if (layer.bias) bias_backward(ctx, *layer.bias, dy.mine);
}

/// Layers that share an input, and their outputs' gradient (M, O) rows.
struct LinearGradient {
  std::vector<WeightModule> layers;
  Tensor dy;
};

/// Backward pass for layers with a gathered input x, which tensor ranks divide or have whole:
/// ctx.delta = x's gradient, summed over the ranks. Its reduction overlaps with the last
/// weight-gradient GEMMs. All wait for the gather.
void gathered_linear_backward(const BlockContext& ctx, const std::vector<LinearGradient>& outputs,
                              const TensorParallel::Gathered& x);

}  // namespace llamesh::model
