#include "model/layers/norm.hpp"

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

}  // namespace llamesh::model
