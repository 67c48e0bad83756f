#include "model/embedding_layer.hpp"

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

/// Returns true if each rank has the same columns in the table and the residual stream.
bool has_its_columns(const BlockContext& ctx, const Tensor& table, const Tensor& residual) {
  return ctx.tensor.divides_columns() && table.cols() == residual.cols();
}

/// First row of the whole table that this rank has, of a table that divides by rows.
std::int64_t vocab_start(const BlockContext& ctx, const Tensor& table) {
  return ctx.tensor.rank() * table.rows();
}

}  // namespace

void embed(const BlockContext& ctx, const WeightModule& leaf, const Tensor& out,
           const Tensor& tokens) {
  const Tensor table = ctx.weights.parameter(leaf.weight);
  if (has_its_columns(ctx, table, out)) return ops::embedding(ctx.stream, out, tokens, table, 0);
  // Each rank looks up the tokens in its vocabulary part.
  ops::embedding(ctx.stream, ctx.tensor.partial(out), tokens, table, vocab_start(ctx, table));
  ctx.stream.wait(ctx.tensor.reduce(out));
}

void embed_backward(const BlockContext& ctx, const WeightModule& leaf, const Tensor& tokens) {
  const auto [d_table, accumulate] = ctx.weights.gradient(leaf.weight);
  const bool own_columns = has_its_columns(ctx, d_table, ctx.d_residual);
  const Tensor d_rows =
      own_columns ? ctx.d_residual : gathered(ctx.stream, ctx.tensor, ctx.d_residual);
  ops::embedding_backward(ctx.stream, d_table, d_rows, tokens,
                          own_columns ? 0 : vocab_start(ctx, d_table), accumulate);
}

}  // namespace llamesh::model
