#include "model/embedding_layer.hpp"

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

/// Returns true if each rank has the same columns in the table and the residual stream.
bool has_its_columns(const BlockContext& x, const Tensor& table, const Tensor& residual) {
  return x.tensor.divides_columns() && table.cols() == residual.cols();
}

template <class PerBlock>
void for_each_block(const ColumnBlocks& matrix, const Tensor& table, PerBlock per_block) {
  for (std::size_t i = 0; i < matrix.blocks.size(); ++i)
    per_block(matrix.blocks[i],
              table.slice_cols(static_cast<std::int64_t>(i) * matrix.width(), matrix.width()));
}

}  // namespace

void embed(const BlockContext& x, const Leaf& leaf, const Tensor& out, const Tensor& tokens) {
  const Tensor table = x.weights.parameter(leaf.weight);
  if (has_its_columns(x, table, out)) return ops::embedding(x.stream, out, tokens, table, 0);
  // Each rank looks up the tokens in its vocabulary part.
  for_each_block(x.tensor.summand(out), table, [&](const Tensor& rows, const Tensor& columns) {
    ops::embedding(x.stream, rows, tokens, columns, first_class(x));
  });
  x.stream.wait(x.tensor.reduce(out));
}

void embed_backward(const BlockContext& x, const Leaf& leaf, const Tensor& tokens) {
  auto [d_table, how] = x.weights.gradient(leaf.weight);
  if (has_its_columns(x, d_table, x.d_residual))
    return ops::embedding_backward(x.stream, d_table, x.d_residual, tokens, 0, how);
  const ColumnBlocks d_rows = gathered(x.stream, x.tensor, x.d_residual);
  if (d_rows.count() > 1 && how == Accumulate::no) {
    ops::fill(x.stream, d_table, 0.0F);  // all of it: GPUs fill dense tensors only
    how = Accumulate::yes;
  }
  for_each_block(d_rows, d_table, [&, how = how](const Tensor& rows, const Tensor& columns) {
    ops::embedding_backward(x.stream, columns, rows, tokens, first_class(x), how);
  });
}

}  // namespace llamesh::model
