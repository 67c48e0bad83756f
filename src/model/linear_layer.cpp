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

/// Calls visit(bias, its layer's columns of `outputs`) for each layer with a bias.
template <class Visit>
void for_each_bias(Weights& weights, std::span<const WeightModule> layers, const Tensor& outputs,
                   Visit visit) {
  std::int64_t column = 0;
  for (const auto& layer : layers) {
    const auto columns = weights.parameter(layer.weight).rows();
    if (layer.bias) visit(*layer.bias, outputs.slice_cols(column, columns));
    column += columns;
  }
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
            std::initializer_list<WeightModule> layers, const Tensor& y, const Tensor& x) {
  const std::span<const WeightModule> all(layers.begin(), layers.size());
  const auto entered = enter_all(weights, all, pass);
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(weights, all)) {
    ops::linear(stream, y.slice_cols(column, w.rows()), x, w, Accumulate::no);
    column += w.rows();
  }
  for_each_bias(weights, all, y, [&](ParameterId bias, const Tensor& outputs) {
    ops::add_bias(stream, outputs, weights.parameter(bias));
  });
}

LinearBackward::LinearBackward(device::Stream& stream, Weights& weights,
                               std::initializer_list<WeightModule> layers)
    : stream_(stream),
      weights_(weights),
      layers_(layers),
      entered_(enter_all(weights, layers_, Pass::backward)) {}

void LinearBackward::input(const Tensor& dx, const Tensor& dy) {
  auto accumulate = Accumulate::no;
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(weights_, layers_)) {
    ops::linear_backward_input(stream_, dx, dy.slice_cols(column, w.rows()), w, accumulate);
    accumulate = Accumulate::yes;
    column += w.rows();
  }
}

void LinearBackward::weights(const Tensor& dy, const Tensor& x) {
  std::int64_t column = 0;
  for (const auto& [dw, accumulate] : gradients_of(weights_, layers_)) {
    ops::linear_backward_weight(stream_, dw, dy.slice_cols(column, dw.rows()), x, accumulate);
    column += dw.rows();
  }
  for_each_bias(weights_, layers_, dy, [&](ParameterId bias, const Tensor& outputs) {
    const auto [d_bias, accumulate] = weights_.gradient(bias);
    ops::column_sums(stream_, d_bias, outputs, accumulate);
  });
}

}  // namespace llamesh::model
