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

}  // namespace

NormStatistics plan_statistics(ArenaAllocator& plan, const WeightModule& norm, std::int64_t rows) {
  NormStatistics statistics{plan.take(DType::f32, {rows}), {}};
  if (norm.centers) statistics.mean = plan.take(DType::f32, {rows});
  return statistics;
}

ops::RowNormCall norm_call(const BlockContext& ctx, const WeightModule& norm, Tensor x, Tensor y,
                           const NormStatistics& statistics) {
  return {.x = x,
          .w = ctx.weights.parameter(norm.weight),
          .offset = ctx.traits.norm_offset,
          .b = norm.bias ? ctx.weights.parameter(*norm.bias) : Tensor(),
          .eps = static_cast<float>(statistics.mean ? ctx.config.layer_norm_epsilon
                                                    : ctx.config.rms_norm_eps),
          .y = y,
          .mean = statistics.mean,
          .inverse = statistics.inverse};
}

ops::RowNormBackwardCall norm_backward_call(const BlockContext& ctx, const WeightModule& norm,
                                            const NormGradients& gradients,
                                            const NormStatistics& statistics,
                                            Accumulate accumulate_dx) {
  const auto [dw, accumulate_dw] = ctx.weights.gradient(norm.weight);
  ops::RowNormBackwardCall call{.x = gradients.x,
                                .w = ctx.weights.parameter(norm.weight),
                                .offset = ctx.traits.norm_offset,
                                .mean = statistics.mean,
                                .inverse = statistics.inverse,
                                .dy = gradients.dy,
                                .dx = gradients.dx,
                                .accumulate_dx = accumulate_dx,
                                .dw = dw,
                                .accumulate_dw = accumulate_dw};
  if (norm.bias) {
    const auto [db, accumulate_db] = ctx.weights.gradient(*norm.bias);
    call.db = db;
    call.accumulate_db = accumulate_db;
  }
  return call;
}

void norm(const BlockContext& ctx, const WeightModule& norm, const Residual& in, Tensor sum,
          Tensor y, const NormStatistics& statistics, NormReader reader) {
  auto call = norm_call(ctx, norm, in.x, y, statistics);
  call.delta = in.delta;
  if (in.delta) call.sum = sum;
  if (ctx.tensor.divides_columns()) {
    call.row_sums = gathered_row_sums(ctx, call.x.rows(), [&](const Tensor& mine) {
      ops::rms_norm_row_sums(ctx.stream, call, mine);
    });
    if (call.delta) call.x = call.sum;
    call.delta = call.sum = {};
  }
  if (call.mean) return ops::layer_norm(ctx.stream, call);
  const bool is_multiplied_here = reader == NormReader::linear && ctx.tensor.size() == 1;
  if (ctx.fp8 && is_multiplied_here)
    return ops::rms_norm_and_quantize(ctx.stream, call, ctx.fp8->left_as_input(y));
  ops::rms_norm(ctx.stream, call);
}

void norm_backward(const BlockContext& ctx, const WeightModule& norm,
                   const NormGradients& gradients, const NormStatistics& statistics,
                   Accumulate accumulate_dx) {
  auto call = norm_backward_call(ctx, norm, gradients, statistics, accumulate_dx);
  if (ctx.tensor.divides_columns())
    call.row_sums = gathered_row_sums(ctx, call.x.rows(), [&](const Tensor& mine) {
      ops::rms_norm_backward_row_sums(ctx.stream, call, mine);
    });
  (call.mean ? ops::layer_norm_backward : ops::rms_norm_backward)(ctx.stream, call);
}

}  // namespace llamesh::model
