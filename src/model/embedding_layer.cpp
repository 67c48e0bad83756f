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

template <class PerBlock>
void for_each_block(const ColumnBlocks& matrix, const Tensor& table, PerBlock per_block) {
  for (std::size_t i = 0; i < matrix.blocks.size(); ++i)
    per_block(matrix.blocks[i],
              table.slice_cols(static_cast<std::int64_t>(i) * matrix.width(), matrix.width()));
}

}  // namespace

void embed(const BlockContext& ctx, const WeightModule& leaf, const Tensor& out,
           const Tensor& tokens) {
  const Tensor table = ctx.weights.parameter(leaf.weight);
  if (has_its_columns(ctx, table, out)) return ops::embedding(ctx.stream, out, tokens, table, 0);
  // Each rank looks up the tokens in its vocabulary part.
  for_each_block(ctx.tensor.partial(out), table, [&](const Tensor& rows, const Tensor& columns) {
    ops::embedding(ctx.stream, rows, tokens, columns, vocab_start(ctx, table));
  });
  ctx.stream.wait(ctx.tensor.reduce(out));
}

void embed_backward(const BlockContext& ctx, const WeightModule& leaf, const Tensor& tokens) {
  auto [d_table, accumulate] = ctx.weights.gradient(leaf.weight);
  if (has_its_columns(ctx, d_table, ctx.d_residual))
    return ops::embedding_backward(ctx.stream, d_table, ctx.d_residual, tokens, 0, accumulate);
  const ColumnBlocks d_rows = gathered(ctx.stream, ctx.tensor, ctx.d_residual);
  if (d_rows.count() > 1 && accumulate == Accumulate::no) {
    ops::fill(ctx.stream, d_table, 0.0F);  // all of it: GPUs fill dense tensors only
    accumulate = Accumulate::yes;
  }
  for_each_block(d_rows, d_table,
                 [&, accumulate = accumulate](const Tensor& rows, const Tensor& columns) {
                   ops::embedding_backward(ctx.stream, columns, rows, tokens,
                                           vocab_start(ctx, d_table), accumulate);
                 });
}

}  // namespace llamesh::model
