#include "model/layers.hpp"

#include <span>

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

/// Gathers into (t, rows) what `sum_up` writes to this rank's row.
template <class SumUp>
Tensor gathered_row_sums(const BlockContext& ctx, std::int64_t rows, SumUp sum_up) {
  const std::int64_t ranks = ctx.tensor.size();
  const Tensor all = ctx.row_sums.slice(0, ranks * rows).reshape({ranks, rows});
  const Tensor mine = all.slice_rows(ctx.tensor.rank(), 1).reshape({rows});
  sum_up(mine);
  ctx.stream.wait(ctx.tensor.all_gather(all, mine));
  return all;
}

void rms_norm(const BlockContext& ctx, ops::RmsNormCall call) {
  if (ctx.tensor.divides_columns()) {
    call.row_sums = gathered_row_sums(ctx, call.x.rows(), [&](const Tensor& mine) {
      ops::rms_norm_row_sums(ctx.stream, call, mine);
    });
    if (call.delta) call.x = call.sum;
    call.delta = call.sum = {};
  }
  ops::rms_norm(ctx.stream, call);
}

void rms_norm_backward(const BlockContext& ctx, ops::RmsNormBackwardCall call) {
  if (ctx.tensor.divides_columns())
    call.row_sums = gathered_row_sums(ctx, call.x.rows(), [&](const Tensor& mine) {
      ops::rms_norm_backward_row_sums(ctx.stream, call, mine);
    });
  ops::rms_norm_backward(ctx.stream, call);
}

}  // namespace

NormStatistics plan_statistics(ArenaAllocator& plan, const WeightModule& norm, std::int64_t rows) {
  NormStatistics statistics{plan.take(DType::f32, {rows}), {}};
  if (norm.bias) statistics.mean = plan.take(DType::f32, {rows});
  return statistics;
}

ops::RmsNormCall rms_norm_call(const BlockContext& ctx, const WeightModule& norm, Tensor x,
                               Tensor y, Tensor inverse_rms) {
  return {.x = x,
          .w = ctx.weights.parameter(norm.weight),
          .offset = ctx.traits.norm_offset,
          .eps = static_cast<float>(ctx.config.rms_norm_eps),
          .y = y,
          .inverse_rms = inverse_rms};
}

ops::RmsNormBackwardCall rms_norm_backward_call(const BlockContext& ctx, const WeightModule& norm,
                                                const NormGradients& gradients, Tensor inverse_rms,
                                                Accumulate accumulate_dx) {
  const auto [dw, accumulate_dw] = ctx.weights.gradient(norm.weight);
  return {.x = gradients.x,
          .w = ctx.weights.parameter(norm.weight),
          .offset = ctx.traits.norm_offset,
          .inverse_rms = inverse_rms,
          .dy = gradients.dy,
          .dx = gradients.dx,
          .accumulate_dx = accumulate_dx,
          .dw = dw,
          .accumulate_dw = accumulate_dw};
}

void norm(const BlockContext& ctx, const WeightModule& norm, const Residual& in, Tensor sum,
          Tensor y, const NormStatistics& statistics) {
  if (!in.delta) sum = {};
  if (!norm.bias) {
    auto call = rms_norm_call(ctx, norm, in.x, y, statistics.inverse);
    call.delta = in.delta;
    call.sum = sum;
    return rms_norm(ctx, call);
  }
  ops::layer_norm(ctx.stream, {.x = in.x,
                               .delta = in.delta,
                               .sum = sum,
                               .w = ctx.weights.parameter(norm.weight),
                               .b = ctx.weights.parameter(*norm.bias),
                               .eps = static_cast<float>(ctx.config.layer_norm_epsilon),
                               .y = y,
                               .mean = statistics.mean,
                               .inverse_std = statistics.inverse});
}

void norm_backward(const BlockContext& ctx, const WeightModule& norm,
                   const NormGradients& gradients, const NormStatistics& statistics,
                   Accumulate accumulate_dx) {
  if (!norm.bias)
    return rms_norm_backward(
        ctx, rms_norm_backward_call(ctx, norm, gradients, statistics.inverse, accumulate_dx));
  const auto [dw, accumulate_dw] = ctx.weights.gradient(norm.weight);
  const auto [db, accumulate_db] = ctx.weights.gradient(*norm.bias);
  ops::layer_norm_backward(ctx.stream, {.x = gradients.x,
                                        .w = ctx.weights.parameter(norm.weight),
                                        .mean = statistics.mean,
                                        .inverse_std = statistics.inverse,
                                        .dy = gradients.dy,
                                        .dx = gradients.dx,
                                        .accumulate_dx = accumulate_dx,
                                        .dw = dw,
                                        .accumulate_dw = accumulate_dw,
                                        .db = db,
                                        .accumulate_db = accumulate_db});
}

namespace {

/// Returns true if each rank has the same columns in the table and the residual stream.
bool has_its_columns(const BlockContext& ctx, const Tensor& table, const Tensor& residual) {
  return ctx.tensor.divides_columns() && table.cols() == residual.cols();
}

/// First row of the whole table that this rank has, of a table that divides by rows.
std::int64_t vocab_start(const BlockContext& ctx, const Tensor& table) {
  return ctx.tensor.rank() * table.rows();
}

/// Adds learned positions to `sum`, which the tensor ranks add up: one of them does.
void add_positions(const BlockContext& ctx, const WeightModule& positions, const Tensor& sum,
                   const Tensor& ids) {
  const UnshardGuard guard(ctx.weights, positions.module, ctx.pass);
  ops::token_positions(ctx.stream, ids, ctx.document_starts, ctx.positions);
  if (ctx.tensor.rank() > 0) return;
  ops::embedding(ctx.stream, sum, ids, ctx.weights.parameter(positions.weight), 0, Accumulate::yes);
}

/// x *= the factor on embeddings, or their gradient *= it.
void scale_embeddings(const BlockContext& ctx, const Tensor& x) {
  const float factor = ctx.traits.embedding_scale;
  if (factor == 1) return;
  ops::scale(ctx.stream, x, x.dtype() == DType::bf16 ? static_cast<float>(bf16(factor)) : factor);
}

/// out (M', D') in the residual stream = table rows for the tokens. The table is whole, or this
/// rank has some of its rows (a vocabulary part) or its residual stream columns.
void look_up(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
             const Tensor& out, const Tensor& tokens) {
  const UnshardGuard guard(ctx.weights, table.embed_tokens.module, ctx.pass);
  const Tensor w = ctx.weights.parameter(table.embed_tokens.weight);
  if (has_its_columns(ctx, w, out))
    return ops::embedding(ctx.stream, out, tokens, w, 0, Accumulate::no);
  // Each rank looks up the tokens in its vocabulary part.
  const Tensor sum = ctx.tensor.partial(out);
  ops::embedding(ctx.stream, sum, tokens, w, vocab_start(ctx, w), Accumulate::no);
  if (table.positions) add_positions(ctx, *table.positions, sum, a.positions);
  ctx.stream.wait(ctx.tensor.reduce(out));
}

}  // namespace

void embed_backward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                    const Tensor& tokens) {
  scale_embeddings(ctx, ctx.d_residual);
  const UnshardGuard guard(ctx.weights, table.embed_tokens.module, Pass::backward);
  const Tensor w = ctx.weights.parameter(table.embed_tokens.weight);
  const bool own_columns = has_its_columns(ctx, w, ctx.d_residual);
  const Tensor d_rows =
      own_columns ? ctx.d_residual : gathered(ctx.stream, ctx.tensor, ctx.d_residual);
  const auto [d_table, accumulate] = ctx.weights.gradient(table.embed_tokens.weight);
  if (d_table)
    ops::embedding_backward(ctx.stream, d_table, d_rows, tokens,
                            own_columns ? 0 : vocab_start(ctx, d_table), accumulate);
  if (!table.positions) return;
  const UnshardGuard positions(ctx.weights, table.positions->module, Pass::backward);
  const auto [d_positions, accumulate_positions] = ctx.weights.gradient(table.positions->weight);
  if (d_positions)
    ops::embedding_backward(ctx.stream, d_positions, d_rows, a.positions, 0, accumulate_positions);
}

Residual forward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                 Tensor tokens) {
  BlockContext frozen = ctx;  // below the lowest trained parameter no backward pass follows
  if (ctx.pass == Pass::forward) frozen.pass = Pass::evaluate;
  Residual hidden{a.blocks.front()->input(), {}};
  look_up(table.backward_end() == table.root ? ctx : frozen, table, a, hidden.x, tokens);
  scale_embeddings(ctx, hidden.x);
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    const auto& of_layer = table.has_backward(i) ? ctx : frozen;
    if (a.offload) a.offload->before_forward(ctx.stream, i);
    hidden = a.blocks[i]->forward(of_layer, hidden);
    if (a.offload && of_layer.pass == Pass::forward) a.offload->after_forward(ctx.stream, i);
  }
  return hidden;
}

Tensor final_norm(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                  const Residual& hidden) {
  norm(ctx, table.norm, hidden, a.last, a.normed_last, a.last_statistics);
  return a.normed_last;
}

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

/// The adapters of layers that share an input x: they add h B^T to y, with h = s x A^T.
class Adapters {
 public:
  Adapters(const BlockContext& ctx, std::span<const WeightModule> layers)
      : ctx_(ctx), layers_(layers) {
    for (const auto& layer : layers)
      if (layer.adapter) as_.push_back(layer.adapter->a);
  }

  void add(const Tensor& y, const Tensor& x) const {
    if (as_.empty()) return;
    const Tensor h = reduced(x);
    for_each_adapter(y, h, [&](const Adapter& adapter, const Tensor& outputs, const Tensor& in) {
      ops::linear(ctx_.stream, outputs, in, ctx_.weights.parameter(adapter.b), Accumulate::yes);
    });
  }
  /// dx += the gradient of x. Leaves the gradient of x A^T for backward_weights().
  void backward_input(const Tensor& dx, const Tensor& dy) const {
    if (as_.empty()) return;
    const Tensor dh = scratch(1, dy.rows());
    for_each_adapter(dy, dh, [&](const Adapter& adapter, const Tensor& outputs, const Tensor& in) {
      ops::linear_backward_input(ctx_.stream, in, outputs, ctx_.weights.parameter(adapter.b),
                                 Accumulate::no);
    });
    ops::scale(ctx_.stream, dh, scaling());
    multiply_backward_input(ctx_, as_, dx, dh, Accumulate::yes);
  }
  /// Recomputes h: it costs r / O of the forward pass, which is less than keeping it.
  void backward_weights(const Tensor& dy, const Tensor& x) const {
    if (as_.empty()) return;
    const Tensor h = reduced(x);
    for_each_adapter(dy, h, [&](const Adapter& adapter, const Tensor& outputs, const Tensor& in) {
      const auto [db, accumulate] = ctx_.weights.gradient(adapter.b);
      ops::linear_backward_weight(ctx_.stream, db, outputs, in, accumulate);
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
  Tensor reduced(const Tensor& x) const {
    const Tensor h = scratch(0, x.rows());
    multiply(ctx_, as_, h, x);
    ops::scale(ctx_.stream, h, scaling());
    return h;
  }
  /// Calls visit(adapter, its layer's columns of `outputs`, its columns of `in`).
  template <class Visit>
  void for_each_adapter(const Tensor& outputs, const Tensor& in, Visit visit) const {
    std::int64_t column = 0;
    for_each_layer(ctx_.weights, layers_, outputs, [&](const auto& layer, const Tensor& of_layer) {
      if (!layer.adapter) return;
      const auto rank = ctx_.weights.parameter(layer.adapter->a).rows();
      visit(*layer.adapter, of_layer, in.slice_cols(column, rank));
      column += rank;
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
  multiply(ctx, weights_of(layers), y, x);
  for_each_layer(ctx.weights, layers, y, [&](const WeightModule& layer, const Tensor& outputs) {
    if (layer.bias) ops::add_bias(ctx.stream, outputs, ctx.weights.parameter(*layer.bias));
  });
  Adapters(ctx, layers).add(y, x);
}

LinearBackward::LinearBackward(const BlockContext& ctx, const std::vector<WeightModule>& layers)
    : ctx_(ctx), layers_(layers), entered_(enter_all(ctx.weights, layers_, Pass::backward)) {}

void LinearBackward::input(const Tensor& dx, const Tensor& dy) {
  multiply_backward_input(ctx_, weights_of(layers_), dx, dy, Accumulate::no);
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

void gathered_linear_backward(const BlockContext& ctx, const std::vector<WeightModule>& layers,
                              Tensor dy, const TensorParallel::Gathered& x) {
  LinearBackward backward(ctx, layers);
  backward.input(ctx.tensor.partial(ctx.delta), dy);
  const auto reduced = ctx.tensor.reduce(ctx.delta);
  ctx.stream.wait(x.ready);
  backward.weights(dy, x.tensor);
  ctx.stream.wait(reduced);
}

}  // namespace llamesh::model
