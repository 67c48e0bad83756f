#include "model/forward_pass.hpp"

#include "model/layers/norm.hpp"
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

/// Returns the context below the lowest trained parameter, where no backward pass follows.
BlockContext without_backward(BlockContext ctx) {
  if (ctx.pass == Pass::forward) ctx.pass = Pass::evaluate;
  return ctx;
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
  ops::token_positions(ctx.stream, a.positions, ctx.document_starts, ctx.positions);
  const auto [d_positions, accumulate_positions] = ctx.weights.gradient(table.positions->weight);
  if (d_positions)
    ops::embedding_backward(ctx.stream, d_positions, d_rows, a.positions, 0, accumulate_positions);
}

void embed(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
           const Tensor& out, const Tensor& tokens) {
  look_up(table.backward_end() == table.root ? ctx : without_backward(ctx), table, a, out, tokens);
  scale_embeddings(ctx, out);
}

Residual run_layers(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                    const ChunkPass& chunk) {
  const BlockContext frozen = without_backward(ctx);
  Residual hidden{chunk.blocks.front()->input(), {}};
  for (std::size_t i = 0; i < chunk.blocks.size(); ++i) {
    const auto& of_layer = table.has_backward(chunk.layers.first + i) ? ctx : frozen;
    if (a.offload) a.offload->before_forward(ctx.stream, chunk.first_kept + i);
    hidden = chunk.blocks[i]->forward(of_layer, hidden);
    if (a.offload && of_layer.pass == Pass::forward)
      a.offload->after_forward(ctx.stream, chunk.first_kept + i);
  }
  return hidden;
}

Residual forward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                 const Tensor& tokens) {
  embed(ctx, table, a, a.whole().blocks.front()->input(), tokens);
  return run_layers(ctx, table, a, a.whole());
}

Tensor final_norm(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                  const Residual& hidden) {
  norm(ctx, table.norm, hidden, a.last, a.normed_last, a.last_statistics);
  // Scaling the head's input scales the logits, at D / V of the cost.
  if (ctx.traits.logit_scale != 1) ops::scale(ctx.stream, a.normed_last, ctx.traits.logit_scale);
  return a.normed_last;
}

}  // namespace llamesh::model
