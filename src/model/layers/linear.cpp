#include "model/layers/linear.hpp"

#include <optional>
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

/// Returns parameters, with neighbors joined.
std::vector<Tensor> parameters_of(Weights& weights, std::span<const ParameterId> ids) {
  std::vector<Tensor> parts;
  for (const auto id : ids) {
    const Tensor w = weights.parameter(id);
    if (!parts.empty() && follows(w, parts.back()))
      parts.back() = joined(parts.back(), w);
    else
      parts.push_back(w);
  }
  return parts;
}

/// The gradient of some rows of the parameters' joint matrix.
struct RowsGradient {
  GradientSlot slot;
  std::int64_t first_row;
  std::int64_t end() const { return first_row + slot.tensor.rows(); }
};

/// Returns the gradients of the parameters that are not frozen, with neighbors joined.
std::vector<RowsGradient> gradients_of(Weights& weights, std::span<const ParameterId> ids) {
  std::vector<RowsGradient> parts;
  std::int64_t row = 0;
  for (const auto id : ids) {
    const auto first_row = row;
    row += weights.parameter(id).rows();
    const GradientSlot slot = weights.gradient(id);
    if (!slot.tensor) continue;
    if (!parts.empty() && parts.back().end() == first_row &&
        follows(slot.tensor, parts.back().slot.tensor) &&
        slot.accumulate == parts.back().slot.accumulate)
      parts.back().slot.tensor = joined(parts.back().slot.tensor, slot.tensor);
    else
      parts.push_back({slot, first_row});
  }
  return parts;
}

std::vector<ParameterId> weights_of(std::span<const WeightModule> layers) {
  std::vector<ParameterId> ids;
  for (const auto& layer : layers) ids.push_back(layer.weight);
  return ids;
}

/// y = x times the parameters, one after the other in y's columns.
void multiply(const BlockContext& ctx, std::span<const ParameterId> ids, const Tensor& y,
              const Tensor& x) {
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(ctx.weights, ids)) {
    ops::linear(ctx.stream, y.slice_cols(column, w.rows()), x, w, Accumulate::no);
    column += w.rows();
  }
}

/// dx = or += the gradient of multiply()'s x.
void multiply_backward_input(const BlockContext& ctx, std::span<const ParameterId> ids,
                             const Tensor& dx, const Tensor& dy, Accumulate accumulate) {
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(ctx.weights, ids)) {
    ops::linear_backward_input(ctx.stream, dx, dy.slice_cols(column, w.rows()), w, accumulate);
    accumulate = Accumulate::yes;
    column += w.rows();
  }
}

/// Computes the gradients of multiply()'s parameters.
void multiply_backward_weights(const BlockContext& ctx, std::span<const ParameterId> ids,
                               const Tensor& dy, const Tensor& x) {
  for (const auto& [slot, first_row] : gradients_of(ctx.weights, ids))
    ops::linear_backward_weight(ctx.stream, slot.tensor,
                                dy.slice_cols(first_row, slot.tensor.rows()), x, slot.accumulate);
}

/// Calls visit(layer, its columns of `outputs`) for each layer.
template <class Visit>
void for_each_layer(Weights& weights, std::span<const WeightModule> layers, const Tensor& outputs,
                    Visit visit) {
  std::int64_t column = 0;
  for (const auto& layer : layers) {
    const auto columns = weights.parameter(layer.weight).rows();
    visit(layer, outputs.slice_cols(column, columns));
    column += columns;
  }
}

/// y = x times the layers' weights, in FP8. Each layer has scales of its own, whatever its
/// neighbors in memory.
void multiply_in_fp8(const BlockContext& ctx, std::span<const WeightModule> layers, const Tensor& y,
                     const Tensor& x) {
  const auto input = ctx.fp8->input(ctx.stream, x);
  for_each_layer(ctx.weights, layers, y, [&](const WeightModule& layer, const Tensor& outputs) {
    const auto weight = ctx.fp8->weight(ctx.stream, {ctx.weights, layer.weight});
    ops::linear_fp8(ctx.stream, outputs, input, weight, Accumulate::no);
  });
}

/// dx = or += the gradient of multiply_in_fp8()'s x, in FP8.
void multiply_backward_input_in_fp8(const BlockContext& ctx, std::span<const WeightModule> layers,
                                    const Tensor& dx, const Tensor& dy, Accumulate accumulate) {
  for_each_layer(ctx.weights, layers, dy, [&](const WeightModule& layer, const Tensor& outputs) {
    const auto gradient = ctx.fp8->input(ctx.stream, outputs);
    const auto weight = ctx.fp8->transposed_weight(ctx.stream, {ctx.weights, layer.weight});
    ops::linear_fp8(ctx.stream, dx, gradient, weight, accumulate);
    accumulate = Accumulate::yes;
  });
}

Tensor rows_of(Weights& weights, ParameterId id, const OutputRange& outputs) {
  return weights.parameter(id).slice_rows(outputs.first, outputs.count);
}

StoredWeight stored_rows_of(Weights& weights, ParameterId id, const OutputRange& outputs) {
  StoredWeight rows(weights, id);
  rows.values = rows.values.slice_rows(outputs.first, outputs.count);
  if (rows.is_fp8()) rows.scales = rows.scales.slice(outputs.first, outputs.count);
  return rows;
}

/// The adapters of layers that share an input x: they add h B^T to y, with h = s x A^T.
class Adapters {
 public:
  Adapters(const BlockContext& ctx, std::span<const WeightModule> layers)
      : ctx_(ctx), layers_(layers) {
    for (const auto& layer : layers)
      if (layer.adapter && (as_.empty() || as_.back() != layer.adapter->a))
        as_.push_back(layer.adapter->a);
  }

  void add(const Tensor& y, const Tensor& x) const {
    if (as_.empty()) return;
    const Tensor h = reduced(x);
    for_each_adapter(y, h, [&](ParameterId b, const Tensor& outputs, const Columns& in) {
      ops::linear(ctx_.stream, outputs, in.tensor, ctx_.weights.parameter(b), Accumulate::yes);
    });
  }
  /// Likewise, for some outputs of the only layer.
  void add_part(const OutputRange& outputs, const Tensor& y, const Tensor& x) const {
    if (as_.empty()) return;
    ops::linear(ctx_.stream, y, reduced(x), rows_of_b(outputs), Accumulate::yes);
  }
  /// x += y times the same outputs' rows.
  void add_part_transposed(const OutputRange& outputs, const Tensor& x, const Tensor& y) const {
    if (as_.empty()) return;
    const Tensor h = scratch(0, y.rows());
    ops::linear_backward_input(ctx_.stream, h, y, rows_of_b(outputs), Accumulate::no);
    ops::scale(ctx_.stream, h, scaling());
    multiply_backward_input(ctx_, as_, x, h, Accumulate::yes);
  }
  /// dx += the gradient of x. Leaves the gradient of x A^T for backward_weights().
  void backward_input(const Tensor& dx, const Tensor& dy) const {
    if (as_.empty()) return;
    const Tensor dh = scratch(1, dy.rows());
    for_each_adapter(dy, dh, [&](ParameterId b, const Tensor& outputs, const Columns& in) {
      ops::linear_backward_input(ctx_.stream, in.tensor, outputs, ctx_.weights.parameter(b),
                                 in.accumulate);
    });
    ops::scale(ctx_.stream, dh, scaling());
    multiply_backward_input(ctx_, as_, dx, dh, Accumulate::yes);
  }
  /// Recomputes h: it costs r / O of the forward pass, which is less than keeping it.
  void backward_weights(const Tensor& dy, const Tensor& x) const {
    if (as_.empty()) return;
    const Tensor h = reduced(x);
    for_each_adapter(dy, h, [&](ParameterId b, const Tensor& outputs, const Columns& in) {
      const auto [db, accumulate] = ctx_.weights.gradient(b);
      ops::linear_backward_weight(ctx_.stream, db, outputs, in.tensor, accumulate);
    });
    multiply_backward_weights(ctx_, as_, scratch(1, x.rows()), x);
  }

 private:
  float scaling() const { return static_cast<float>(ctx_.config.lora->scaling()); }
  /// Returns a dense matrix (rows, the adapters' ranks), the first or the second one.
  Tensor scratch(std::int64_t number, std::int64_t rows) const {
    std::int64_t columns = 0;
    for (const auto a : as_) columns += ctx_.weights.parameter(a).rows();
    const auto half = ctx_.adapters.numel() / 2;
    const Tensor all = ctx_.adapters.reshape({2 * half});
    return all.slice(number * half, rows * columns).reshape({rows, columns});
  }
  Tensor rows_of_b(const OutputRange& outputs) const {
    return rows_of(ctx_.weights, layers_.front().adapter->b, outputs);
  }
  Tensor reduced(const Tensor& x) const {
    const Tensor h = scratch(0, x.rows());
    multiply(ctx_, as_, h, x);
    ops::scale(ctx_.stream, h, scaling());
    return h;
  }
  /// Columns in x A^T; to accumulate: the preceding layer has the same A, and the same columns.
  struct Columns {
    Tensor tensor;
    Accumulate accumulate;
  };
  /// Calls visit(B, its layer's columns of `outputs`, its A's columns of `in`) for each adapter.
  template <class Visit>
  void for_each_adapter(const Tensor& outputs, const Tensor& in, Visit visit) const {
    std::optional<ParameterId> a;  // of the layer before
    std::int64_t begin = 0, end = 0;
    for_each_layer(ctx_.weights, layers_, outputs, [&](const auto& layer, const Tensor& of_layer) {
      if (!layer.adapter) return;
      const bool is_shared = a == layer.adapter->a;
      if (!is_shared) {
        a = layer.adapter->a;
        begin = end;
        end += ctx_.weights.parameter(*a).rows();
      }
      visit(
          layer.adapter->b, of_layer,
          Columns{in.slice_cols(begin, end - begin), is_shared ? Accumulate::yes : Accumulate::no});
    });
  }

  const BlockContext& ctx_;
  std::span<const WeightModule> layers_;
  std::vector<ParameterId> as_;
};

/// Enters the modules of one call; they stay entered for the result's lifetime.
std::deque<UnshardGuard> enter_all(Weights& weights, std::span<const WeightModule> layers,
                                   Pass pass) {
  std::deque<UnshardGuard> entered;  // a deque does not move its elements
  for (const auto& layer : layers) entered.emplace_back(weights, layer.module, pass);
  return entered;
}

}  // namespace

void linear(const BlockContext& ctx, const std::vector<WeightModule>& layers, const Tensor& y,
            const Tensor& x) {
  const auto entered = enter_all(ctx.weights, layers, ctx.pass);
  if (ctx.fp8)
    multiply_in_fp8(ctx, layers, y, x);
  else
    multiply(ctx, weights_of(layers), y, x);
  for_each_layer(ctx.weights, layers, y, [&](const WeightModule& layer, const Tensor& outputs) {
    if (layer.bias) ops::add_bias(ctx.stream, outputs, ctx.weights.parameter(*layer.bias));
  });
  Adapters(ctx, layers).add(y, x);
}

void linear_part(const BlockContext& ctx, const WeightModule& layer, const OutputRange& outputs,
                 const Tensor& y, const Tensor& x) {
  if (ctx.fp8) {
    const auto rows = stored_rows_of(ctx.weights, layer.weight, outputs);
    ops::linear_fp8(ctx.stream, y, ctx.fp8->input(ctx.stream, x), ctx.fp8->weight(ctx.stream, rows),
                    Accumulate::no);
  } else {
    ops::linear(ctx.stream, y, x, rows_of(ctx.weights, layer.weight, outputs), Accumulate::no);
  }
  Adapters(ctx, {&layer, 1}).add_part(outputs, y, x);
}

void linear_part_transposed(const BlockContext& ctx, const WeightModule& layer,
                            const OutputRange& outputs, const Tensor& x, const Tensor& y,
                            Accumulate accumulate) {
  if (ctx.fp8) {
    const auto rows = stored_rows_of(ctx.weights, layer.weight, outputs);
    ops::linear_fp8(ctx.stream, x, ctx.fp8->input(ctx.stream, y),
                    ctx.fp8->transposed_weight(ctx.stream, rows), accumulate);
  } else {
    ops::linear_backward_input(ctx.stream, x, y, rows_of(ctx.weights, layer.weight, outputs),
                               accumulate);
  }
  Adapters(ctx, {&layer, 1}).add_part_transposed(outputs, x, y);
}

LinearBackward::LinearBackward(const BlockContext& ctx, const std::vector<WeightModule>& layers)
    : ctx_(ctx), layers_(layers), entered_(enter_all(ctx.weights, layers_, Pass::backward)) {}

void LinearBackward::input(const Tensor& dx, const Tensor& dy, Accumulate accumulate) {
  if (ctx_.fp8)
    multiply_backward_input_in_fp8(ctx_, layers_, dx, dy, accumulate);
  else
    multiply_backward_input(ctx_, weights_of(layers_), dx, dy, accumulate);
  Adapters(ctx_, layers_).backward_input(dx, dy);
}

void LinearBackward::weights(const Tensor& dy, const Tensor& x) {
  multiply_backward_weights(ctx_, weights_of(layers_), dy, x);
  for_each_layer(ctx_.weights, layers_, dy, [&](const WeightModule& layer, const Tensor& outputs) {
    if (layer.bias) bias_backward(ctx_, *layer.bias, outputs);
  });
  Adapters(ctx_, layers_).backward_weights(dy, x);
}

void linear_and_reduce(const BlockContext& ctx, const WeightModule& layer, Tensor y, Tensor input) {
  const UnshardGuard guard(ctx.weights, layer.module, ctx.pass);
  linear(ctx, {without_bias(layer)}, ctx.tensor.partial(y), input);
  ctx.stream.wait(ctx.tensor.reduce(y));
  if (layer.bias) ops::add_bias(ctx.stream, y, ctx.weights.parameter(*layer.bias));
}

void bias_backward(const BlockContext& ctx, ParameterId bias, Tensor dy) {
  const auto [d_bias, accumulate] = ctx.weights.gradient(bias);
  if (d_bias) ops::column_sums(ctx.stream, d_bias, dy, accumulate);
}

void gathered_linear_backward(const BlockContext& ctx, const std::vector<LinearGradient>& outputs,
                              const TensorParallel::Gathered& x) {
  const Tensor partial = ctx.tensor.partial(ctx.delta);
  device::Event reduced;
  auto accumulate = Accumulate::no;
  for (const auto& output : outputs) {
    LinearBackward backward(ctx, output.layers);
    backward.input(partial, output.dy, accumulate);
    accumulate = Accumulate::yes;
    if (&output == &outputs.back()) reduced = ctx.tensor.reduce(ctx.delta);
    ctx.stream.wait(x.ready);
    backward.weights(output.dy, x.tensor);
  }
  ctx.stream.wait(reduced);
}

}  // namespace llamesh::model
