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

void norm(const BlockContext& ctx, const WeightModule& norm, const Residual& in, Tensor sum,
          Tensor y, const NormStatistics& statistics) {
  const Tensor w = ctx.weights.parameter(norm.weight);
  if (!in.delta) sum = {};
  if (!norm.bias)
    return rms_norm(ctx, {.x = in.x,
                          .delta = in.delta,
                          .sum = sum,
                          .w = w,
                          .eps = static_cast<float>(ctx.config.rms_norm_eps),
                          .y = y,
                          .inverse_rms = statistics.inverse});
  ops::layer_norm(ctx.stream, {.x = in.x,
                               .delta = in.delta,
                               .sum = sum,
                               .w = w,
                               .b = ctx.weights.parameter(*norm.bias),
                               .eps = static_cast<float>(ctx.config.layer_norm_epsilon),
                               .y = y,
                               .mean = statistics.mean,
                               .inverse_std = statistics.inverse});
}

void norm_backward(const BlockContext& ctx, const WeightModule& norm,
                   const NormGradients& gradients, const NormStatistics& statistics,
                   Accumulate accumulate_dx) {
  const Tensor w = ctx.weights.parameter(norm.weight);
  const auto [dw, accumulate_dw] = ctx.weights.gradient(norm.weight);
  if (!norm.bias)
    return rms_norm_backward(ctx, {.x = gradients.x,
                                   .w = w,
                                   .inverse_rms = statistics.inverse,
                                   .dy = gradients.dy,
                                   .dx = gradients.dx,
                                   .accumulate_dx = accumulate_dx,
                                   .dw = dw,
                                   .accumulate_dw = accumulate_dw});
  const auto [db, accumulate_db] = ctx.weights.gradient(*norm.bias);
  ops::layer_norm_backward(ctx.stream, {.x = gradients.x,
                                        .w = w,
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

/// out (M', D') in the residual stream = table rows for the tokens. The table is whole, or this
/// rank has some of its rows (a vocabulary part) or its residual stream columns.
void embed(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
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
  embed(table.backward_end() == table.root ? ctx : frozen, table, a, hidden.x, tokens);
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

/// The gradient of some rows of the layers' joint matrix.
struct RowsGradient {
  GradientSlot slot;
  std::int64_t first_row;
  std::int64_t end() const { return first_row + slot.tensor.rows(); }
};

/// Returns the gradients of the layers that are not frozen, with neighbours joined.
std::vector<RowsGradient> gradients_of(Weights& weights, std::span<const WeightModule> layers) {
  std::vector<RowsGradient> parts;
  std::int64_t row = 0;
  for (const auto& layer : layers) {
    const auto first_row = row;
    row += weights.parameter(layer.weight).rows();
    const GradientSlot slot = weights.gradient(layer.weight);
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

/// Computes a bias's gradient, unless it is frozen.
void bias_gradient(device::Stream& stream, Weights& weights, ParameterId bias, const Tensor& dy) {
  const auto [d_bias, accumulate] = weights.gradient(bias);
  if (d_bias) ops::column_sums(stream, d_bias, dy, accumulate);
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
            const std::vector<WeightModule>& layers, const Tensor& y, const Tensor& x) {
  const auto entered = enter_all(weights, layers, pass);
  std::int64_t column = 0;
  for (const Tensor& w : parameters_of(weights, layers)) {
    ops::linear(stream, y.slice_cols(column, w.rows()), x, w, Accumulate::no);
    column += w.rows();
  }
  for_each_bias(weights, layers, y, [&](ParameterId bias, const Tensor& outputs) {
    ops::add_bias(stream, outputs, weights.parameter(bias));
  });
}

LinearBackward::LinearBackward(device::Stream& stream, Weights& weights,
                               const std::vector<WeightModule>& layers)
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
  for (const auto& [slot, first_row] : gradients_of(weights_, layers_))
    ops::linear_backward_weight(stream_, slot.tensor, dy.slice_cols(first_row, slot.tensor.rows()),
                                x, slot.accumulate);
  for_each_bias(weights_, layers_, dy, [&](ParameterId bias, const Tensor& outputs) {
    bias_gradient(stream_, weights_, bias, outputs);
  });
}

void linear_and_reduce(const BlockContext& ctx, const WeightModule& layer, Tensor y, Tensor input) {
  const UnshardGuard guard(ctx.weights, layer.module, ctx.pass);
  linear(ctx.stream, ctx.weights, ctx.pass, {{layer.module, layer.weight}}, ctx.tensor.partial(y),
         input);
  ctx.stream.wait(ctx.tensor.reduce(y));
  if (layer.bias) ops::add_bias(ctx.stream, y, ctx.weights.parameter(*layer.bias));
}

void bias_backward(const BlockContext& ctx, ParameterId bias, Tensor dy) {
  bias_gradient(ctx.stream, ctx.weights, bias, dy);
}

void gathered_linear_backward(const BlockContext& ctx, const std::vector<WeightModule>& layers,
                              Tensor dy, const TensorParallel::Gathered& x) {
  LinearBackward backward(ctx.stream, ctx.weights, layers);
  backward.input(ctx.tensor.partial(ctx.delta), dy);
  const auto reduced = ctx.tensor.reduce(ctx.delta);
  ctx.stream.wait(x.ready);
  backward.weights(dy, x.tensor);
  ctx.stream.wait(reduced);
}

}  // namespace llamesh::model
