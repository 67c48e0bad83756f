#pragma once

#include <deque>
#include <initializer_list>
#include <vector>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/weights.hpp"

/// Linear layers that share an input (q, k, v; gate, up; or a single one). If their weights are
/// adjacent in memory, as in a ShardLayout unit, they form one matrix and one GEMM.
///
/// M tokens, I inputs, O outputs over all layers.
namespace llamesh::model {

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
