#include "model/norm_layer.hpp"

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

}  // namespace llamesh::model
