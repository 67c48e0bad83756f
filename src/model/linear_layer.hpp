#pragma once

#include <deque>
#include <initializer_list>
#include <vector>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/column_blocks.hpp"
#include "model/weights.hpp"

/// Linear layers that share one input (q, k, v; gate, up; or one alone). Where their weights are
/// side by side in memory, as in a unit of the ShardLayout, they are one matrix and one GEMM.
///
/// M tokens, I inputs, O outputs of all layers together. Outputs in blocks of columns are of one
/// layer.
namespace llamesh::model {

/// y (M, O) rows = x (M, I) rows times the weights; the first layer fills the first columns of y.
void linear(device::Stream& stream, Weights& weights, Pass pass,
            std::initializer_list<WeightModule> layers, const ColumnBlocks& y,
            const ColumnBlocks& x);

/// Their backward pass, in two parts, so that other work can overlap with the second. The layers
/// are entered for as long as this lives.
class LinearBackward {
 public:
  LinearBackward(device::Stream& stream, Weights& weights,
                 std::initializer_list<WeightModule> layers);
  /// dx (M, I) = dy (M, O) times the weights.
  void input(const ColumnBlocks& dx, const ColumnBlocks& dy);
  /// The weights' gradients by dy and the forward's x.
  void weights(const ColumnBlocks& dy, const ColumnBlocks& x);

 private:
  device::Stream& stream_;
  Weights& weights_;
  std::vector<WeightModule> layers_;
  std::deque<UnshardGuard> entered_;
};

}  // namespace llamesh::model
