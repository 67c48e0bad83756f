#include "model/linear_layer.hpp"

#include <span>

#include "core/error.hpp"

namespace llamesh::model {
namespace {

bool follows(const Tensor& next, const Tensor& before) {
  return next.data() == static_cast<std::byte*>(before.data()) + before.bytes() &&
         next.dtype() == before.dtype() && next.cols() == before.cols();
}

Tensor joined(const Tensor& a, const Tensor& b) {
  return {a.data(), a.dtype(), {a.rows() + b.rows(), a.cols()}};
}

/// Returns the layers' weights, with neighbours joined.
std::vector<Tensor> parameters_of(Weights& weights, std::span<const WeightModule> layers) {
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

/// Returns the layers' gradient slots, with neighbours joined.
std::vector<GradientSlot> gradients_of(Weights& weights, std::span<const WeightModule> layers) {
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

/// Returns the output columns for a weight, starting at `column` in a matrix for all layers.
ColumnBlocks outputs_of(const Tensor& w, const ColumnBlocks& all, std::int64_t column) {
  if (all.count() == 1) return all.blocks.front().slice_cols(column, w.rows());
  expects(column == 0, "outputs of several layers in blocks of columns");
  return all;
}

/// Enters the modules of one call; they stay entered for the result's lifetime.
std::deque<UnshardGuard> enter_all(Weights& weights, std::span<const WeightModule> layers,
                                   Pass pass) {
  std::deque<UnshardGuard> entered;  // a deque does not move its elements
  for (const auto& layer : layers) entered.emplace_back(weights, layer.module, pass);
  return entered;
}

}  // namespace

void linear(device::Stream& stream, Weights& weights, Pass pass,
            std::initializer_list<WeightModule> layers, const ColumnBlocks& y,
            const ColumnBlocks& x) {
  const std::span<const WeightModule> all(layers.begin(), layers.size());
  const auto entered = enter_all(weights, all, pass);
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(weights, all)) {
    linear(stream, outputs_of(w, y, column), x, w, Accumulate::no);
    column += w.rows();
  }
}

LinearBackward::LinearBackward(device::Stream& stream, Weights& weights,
                               std::initializer_list<WeightModule> layers)
    : stream_(stream),
      weights_(weights),
      layers_(layers),
      entered_(enter_all(weights, layers_, Pass::backward)) {}

void LinearBackward::input(const ColumnBlocks& dx, const ColumnBlocks& dy) {
  auto accumulate = Accumulate::no;
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(weights_, layers_)) {
    linear_backward_input(stream_, dx, outputs_of(w, dy, column), w, accumulate);
    accumulate = Accumulate::yes;
    column += w.rows();
  }
}

void LinearBackward::weights(const ColumnBlocks& dy, const ColumnBlocks& x) {
  std::int64_t column = 0;
  for (const auto& [dw, accumulate] : gradients_of(weights_, layers_)) {
    linear_backward_weight(stream_, dw, outputs_of(dw, dy, column), x, accumulate);
    column += dw.rows();
  }
}

}  // namespace llamesh::model
