#pragma once

#include <deque>
#include <initializer_list>
#include <vector>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/column_blocks.hpp"
#include "model/weights.hpp"

/// Linear layers that share an input (q, k, v; gate, up; or a single one). If their weights are
/// adjacent in memory, as in a ShardLayout unit, they form one matrix and one GEMM.
///
/// M tokens, I inputs, O outputs over all layers. Column-blocked outputs require a single layer.
namespace llamesh::model {

/// y (M, O) rows = x (M, I) rows times the weights. The first layer fills the first columns of y.
void linear(device::Stream& stream, Weights& weights, Pass pass, std::initializer_list<Leaf> layers,
            const ColumnBlocks& y, const ColumnBlocks& x);

/// Backward pass in two parts, so that other work can overlap with the second. The layers stay
/// entered for this object's lifetime.
class LinearBackward {
 public:
  LinearBackward(device::Stream& stream, Weights& weights, std::initializer_list<Leaf> layers);
  /// dx (M, I) = dy (M, O) times the weights.
  void input(const ColumnBlocks& dx, const ColumnBlocks& dy);
  /// Computes the weight gradients from dy and the forward pass's x.
  void weights(const ColumnBlocks& dy, const ColumnBlocks& x);

 private:
  device::Stream& stream_;
  Weights& weights_;
  std::vector<Leaf> layers_;
  std::deque<Entered> entered_;
};

}  // namespace llamesh::model
