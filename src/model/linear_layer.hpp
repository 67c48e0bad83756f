#pragma once

#include <initializer_list>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/weights.hpp"

/// Linear layers that share one input (q, k, v; gate, up; or one alone). Where their weights lie
/// side by side in memory, as in a unit of the ShardLayout, they are one matrix and one GEMM.
///
/// M tokens, I inputs, O outputs of all layers together.
namespace llamesh::model {

/// y (M, O) rows = x (M, I) rows times the weights; the first layer fills the first columns of y.
void linear(device::Stream& stream, Weights& weights, Pass pass, std::initializer_list<Leaf> layers,
            Tensor y, Tensor x);

/// dx (M, I) = or += dy (M, O) times the weights; the weights' gradients by dy and the forward's x.
void linear_backward(device::Stream& stream, Weights& weights, std::initializer_list<Leaf> layers,
                     Tensor dx, Accumulate accumulate, Tensor dy, Tensor x);

}  // namespace llamesh::model
