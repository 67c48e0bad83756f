#include "model/linear_layer.hpp"

#include <span>

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

bool follows(const Tensor& next, const Tensor& before) {
  return next.data() == static_cast<std::byte*>(before.data()) + before.bytes() &&
         next.dtype() == before.dtype() && next.cols() == before.cols();
}

Tensor joined(const Tensor& a, const Tensor& b) {
  return {a.data(), a.dtype(), {a.rows() + b.rows(), a.cols()}};
}

/// The layers' weights, neighbours joined.
std::vector<Tensor> parameters_of(Weights& weights, std::span<const Leaf> layers) {
  std::vector<Tensor> parts;
  for (const auto& layer : layers) {
    const Tensor w = weights.parameter(layer.weight);
    if (!parts.empty() && follows(w, parts.back()))
      parts.back() = joined(parts.back(), w);
    else
      parts.push_back(w);
  }
  return parts;
}

/// The same for where their gradients go.
std::vector<GradientSlot> gradients_of(Weights& weights, std::span<const Leaf> layers) {
  std::vector<GradientSlot> parts;
  for (const auto& layer : layers) {
    const GradientSlot slot = weights.gradient(layer.weight);
    if (!parts.empty() && follows(slot.tensor, parts.back().tensor) &&
        slot.accumulate == parts.back().accumulate)
      parts.back().tensor = joined(parts.back().tensor, slot.tensor);
    else
      parts.push_back(slot);
  }
  return parts;
}

/// The leaf modules of one call, entered for as long as the result lives.
std::deque<Entered> enter_all(Weights& weights, std::span<const Leaf> layers, Pass pass) {
  std::deque<Entered> entered;  // which moves nothing when it grows
  for (const auto& layer : layers) entered.emplace_back(weights, layer.module, pass);
  return entered;
}

}  // namespace

void linear(device::Stream& stream, Weights& weights, Pass pass, std::initializer_list<Leaf> layers,
            Tensor y, Tensor x) {
  const std::span<const Leaf> all(layers.begin(), layers.size());
  const auto entered = enter_all(weights, all, pass);
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(weights, all)) {
    ops::linear(stream, y.slice_cols(column, w.rows()), x, w, Accumulate::no);
    column += w.rows();
  }
}

LinearBackward::LinearBackward(device::Stream& stream, Weights& weights,
                               std::initializer_list<Leaf> layers)
    : stream_(stream),
      weights_(weights),
      layers_(layers),
      entered_(enter_all(weights, layers_, Pass::backward)) {}

void LinearBackward::input(Tensor dx, Tensor dy) {
  auto accumulate = Accumulate::no;
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(weights_, layers_)) {
    ops::linear_backward_input(stream_, dx, dy.slice_cols(column, w.rows()), w, accumulate);
    accumulate = Accumulate::yes;
    column += w.rows();
  }
}

void LinearBackward::weights(Tensor dy, Tensor x) {
  std::int64_t column = 0;
  for (const auto& [dw, how] : gradients_of(weights_, layers_)) {
    ops::linear_backward_weight(stream_, dw, dy.slice_cols(column, dw.rows()), x, how);
    column += dw.rows();
  }
}

}  // namespace llamesh::model
