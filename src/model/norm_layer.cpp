#include "model/norm_layer.hpp"

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

/// Gathers into (t, rows) what `sum_up` writes to this rank's row.
template <class SumUp>
Tensor gathered_row_sums(const BlockContext& x, std::int64_t rows, SumUp sum_up) {
  const std::int64_t ranks = x.tensor.size();
  const Tensor all = x.row_sums.slice(0, ranks * rows).reshape({ranks, rows});
  const Tensor mine = all.slice_rows(x.tensor.rank(), 1).reshape({rows});
  sum_up(mine);
  x.stream.wait(x.tensor.all_gather(all, mine));
  return all;
}

}  // namespace

void rms_norm(const BlockContext& x, ops::RmsNormCall call) {
  if (x.tensor.divides_columns()) {
    call.row_sums = gathered_row_sums(x, call.x.rows(), [&](const Tensor& mine) {
      ops::rms_norm_row_sums(x.stream, call, mine);
    });
    if (call.delta) call.x = call.sum;
    call.delta = call.sum = {};
  }
  ops::rms_norm(x.stream, call);
}

void rms_norm_backward(const BlockContext& x, ops::RmsNormBackwardCall call) {
  if (x.tensor.divides_columns())
    call.row_sums = gathered_row_sums(x, call.x.rows(), [&](const Tensor& mine) {
      ops::rms_norm_backward_row_sums(x.stream, call, mine);
    });
  ops::rms_norm_backward(x.stream, call);
}

}  // namespace llamesh::model
