#pragma once

#include <deque>
#include <initializer_list>
#include <vector>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/activations.hpp"
#include "model/block.hpp"
#include "model/weights.hpp"
#include "ops/calls.hpp"

/// What a pass is made of: norms, embedding, linear layers, and the way from tokens to the final
/// norm, which training, evaluation and inference share.
namespace llamesh::model {

/// ops::rms_norm() on rows in the residual stream. If ranks have columns, gathers the row sums in
/// between. Leave call.row_sums empty.
void rms_norm(const BlockContext& ctx, ops::RmsNormCall call);

/// Like rms_norm(), for ops::rms_norm_backward().
void rms_norm_backward(const BlockContext& ctx, ops::RmsNormBackwardCall call);

/// out (M', D') in the residual stream = table rows for the tokens (M), int32. The table is whole,
/// or this rank has some of its rows (a vocabulary part) or its residual stream columns. The caller
/// enters the module.
void embed(const BlockContext& ctx, const WeightModule& table, const Tensor& out,
           const Tensor& tokens);

/// Computes the table's gradient from out's gradient, ctx.d_residual.
void embed_backward(const BlockContext& ctx, const WeightModule& table, const Tensor& tokens);

/// Runs the embedding and all layers. Returns the residual stream after the last layer. tokens (M)
/// int32.
Residual forward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                 Tensor tokens);

/// Returns the final norm (M', D'), in a.normed_last. The caller enters its module.
Tensor final_norm(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                  const Residual& hidden);

// --- Linear layers that share an input (q, k, v; gate, up; or a single one). If their weights are
// adjacent in memory, as in a ShardLayout unit, they form one matrix and one GEMM. M tokens, I
// inputs, O outputs over all layers. ---

/// y (M, O) rows = x (M, I) rows times the weights, plus the biases. The first layer fills the
/// first columns of y.
void linear(device::Stream& stream, Weights& weights, Pass pass,
            std::initializer_list<WeightModule> layers, const Tensor& y, const Tensor& x);

/// Backward pass in two parts, so that other work can overlap with the second. The layers stay
/// entered for this object's lifetime.
class LinearBackward {
 public:
  LinearBackward(device::Stream& stream, Weights& weights,
                 std::initializer_list<WeightModule> layers);
  /// dx (M, I) = dy (M, O) times the weights.
  void input(const Tensor& dx, const Tensor& dy);
  /// Computes the gradients of weights and biases from dy and the forward pass's x.
  void weights(const Tensor& dy, const Tensor& x);

 private:
  device::Stream& stream_;
  Weights& weights_;
  std::vector<WeightModule> layers_;
  std::deque<UnshardGuard> entered_;
};

}  // namespace llamesh::model
