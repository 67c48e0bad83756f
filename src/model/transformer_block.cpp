#include "model/transformer_block.hpp"

#include "model/layers.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

using enum ActivationCheckpointing;

ops::AttentionShape attention_shape(const BlockContext& ctx, const AttentionHeads& heads) {
  return {ctx.batch, ctx.sequence, heads.q, heads.kv, heads.dim};
}

/// q, k and v as column slices of (M, (H + 2 K) E).
struct QkvSlices {
  QkvSlices(const Tensor& qkv, const AttentionHeads& heads)
      : q(qkv.slice_cols(0, heads.q * heads.dim)),
        k(qkv.slice_cols(q.cols(), heads.kv * heads.dim)),
        v(qkv.slice_cols(q.cols() + k.cols(), k.cols())) {}
  Tensor q, k, v;
};

ops::AttentionCall attention_call(const BlockContext& ctx, const TransformerBlock::Tensors& t,
                                  const AttentionHeads& heads) {
  const QkvSlices s(t.qkv, heads);
  return {.shape = attention_shape(ctx, heads),
          .q = s.q,
          .k = s.k,
          .v = s.v,
          .document_starts = ctx.document_starts,
          .out = t.attention,
          .log_sum_exp = t.log_sum_exp};
}

/// Rotates q and k. They are neighbours, so that one call does both.
void rope(const BlockContext& ctx, const Tensor& qkv, const AttentionHeads& heads) {
  ops::rope(ctx.stream, qkv.slice_cols(0, (heads.q + heads.kv) * heads.dim), ctx.cos_sin,
            ctx.document_starts, heads.dim, ops::Rotation::forward);
}

/// normed = norm(sum), sum = in.x + in.delta. Without a delta, `sum` holds in.x already.
void norm(const BlockContext& ctx, const WeightModule& leaf, Tensor normed, Tensor rms, Tensor sum,
          const Residual& in) {
  const UnshardGuard guard(ctx.weights, leaf.module, ctx.pass);
  rms_norm(ctx, {.x = in.x,
                 .delta = in.delta,
                 .sum = in.delta ? sum : Tensor(),
                 .w = ctx.weights.parameter(leaf.weight),
                 .eps = static_cast<float>(ctx.config.rms_norm_eps),
                 .y = normed,
                 .inverse_rms = rms});
}

/// Adds the gradient through a norm to d_residual.
void norm_backward(const BlockContext& ctx, const WeightModule& leaf, Tensor d_normed, Tensor input,
                   Tensor rms) {
  const UnshardGuard guard(ctx.weights, leaf.module, Pass::backward);
  const auto [dw, accumulate] = ctx.weights.gradient(leaf.weight);
  rms_norm_backward(ctx, {.x = input,
                          .w = ctx.weights.parameter(leaf.weight),
                          .inverse_rms = rms,
                          .dy = d_normed,
                          .dx = ctx.d_residual,
                          .accumulate_dx = Accumulate::yes,
                          .dw = dw,
                          .accumulate_dw = accumulate});
}

/// ctx.delta = the layer's output. Tensor ranks each have a part of its inputs, so their partial
/// outputs are summed, and the bias is added to the sum.
void linear_and_reduce(const BlockContext& ctx, const WeightModule& layer, Tensor input) {
  const UnshardGuard guard(ctx.weights, layer.module, ctx.pass);
  linear(ctx.stream, ctx.weights, ctx.pass, {{layer.module, layer.weight}},
         ctx.tensor.partial(ctx.delta), input);
  ctx.stream.wait(ctx.tensor.reduce(ctx.delta));
  if (layer.bias) ops::add_bias(ctx.stream, ctx.delta, ctx.weights.parameter(*layer.bias));
}

/// Backward pass for linear_and_reduce(): d_input, and the weight gradients from dy, which is the
/// gathered ctx.d_residual. Calls between() before these.
template <class Between>
void reduced_linear_backward(const BlockContext& ctx, const WeightModule& layer, Tensor d_input,
                             Tensor dy, Tensor input, Between between) {
  const UnshardGuard guard(ctx.weights, layer.module, Pass::backward);
  LinearBackward backward(ctx.stream, ctx.weights, {{layer.module, layer.weight}});
  backward.input(d_input, dy);
  between();
  backward.weights(dy, input);
  if (!layer.bias) return;
  const auto [d_bias, accumulate] = ctx.weights.gradient(*layer.bias);
  ops::column_sums(ctx.stream, d_bias, ctx.d_residual, accumulate);
}

/// Backward pass for layers with a gathered input: ctx.delta = gradient of `normed`. Its reduction
/// overlaps with the weight-gradient GEMMs, which wait for the gather.
void gathered_linear_backward(const BlockContext& ctx, std::initializer_list<WeightModule> layers,
                              Tensor dy, const TensorParallel::Gathered& normed) {
  LinearBackward backward(ctx.stream, ctx.weights, layers);
  backward.input(ctx.tensor.partial(ctx.delta), dy);
  const auto reduced = ctx.tensor.reduce(ctx.delta);
  ctx.stream.wait(normed.ready);
  backward.weights(dy, normed.tensor);
  ctx.stream.wait(reduced);
}

}  // namespace

std::unique_ptr<Block> make_transformer_block(const ModelConfig& config,
                                              const ParameterTable& table, std::size_t index) {
  return std::make_unique<TransformerBlock>(table, config.head_dim, index);
}

TransformerBlock::TransformerBlock(const ParameterTable& table, std::int64_t head_dim,
                                   std::size_t index)
    : ids_(find_modules(table, table.layers[index])),
      heads_{.q = table[ids_.q_proj.weight].shape[0] / head_dim,
             .kv = table[ids_.k_proj.weight].shape[0] / head_dim,
             .dim = head_dim},
      intermediate_(table[ids_.down_proj.weight].shape[1]),
      index_(index) {}

TransformerBlock::Modules TransformerBlock::find_modules(const ParameterTable& table,
                                                         ModuleId layer) {
  const auto self_attn = table.child(layer, "self_attn");
  const auto mlp = table.child(layer, "mlp");
  return {.layer = layer,
          .self_attn = self_attn,
          .mlp = mlp,
          .q_proj = table.weight_module(self_attn, "q_proj"),
          .k_proj = table.weight_module(self_attn, "k_proj"),
          .v_proj = table.weight_module(self_attn, "v_proj"),
          .o_proj = table.weight_module(self_attn, "o_proj"),
          .gate_proj = table.weight_module(mlp, "gate_proj"),
          .up_proj = table.weight_module(mlp, "up_proj"),
          .down_proj = table.weight_module(mlp, "down_proj"),
          .input_norm = table.weight_module(layer, "input_layernorm"),
          .post_attention_norm = table.weight_module(layer, "post_attention_layernorm")};
}

void TransformerBlock::plan(ArenaAllocator& plan, const PassShape& pass,
                            ActivationCheckpointing checkpointing, const Block* last) {
  checkpointing_ = checkpointing;
  if (last) tensors_ = static_cast<const TransformerBlock*>(last)->tensors_;
  if (!last || pass.has_backward()) plan_kept(plan, pass);
  if (!last && pass.has_backward()) plan_backward(plan, pass);
}

/// Takes separate tensors for what the layer keeps; the others remain shared.
void TransformerBlock::plan_kept(ArenaAllocator& plan, const PassShape& pass) {
  const auto take = [&](std::int64_t rows, std::int64_t cols) {
    return plan.take(pass.dtype, {rows, cols});
  };
  const auto M = pass.tokens();
  Tensors& t = tensors_;
  const auto [rows, hidden] = pass.residual;
  t.input = take(rows, hidden);
  if (checkpointing_ != full) {
    t.input_rms = plan.take(DType::f32, {rows});
    t.qkv = take(M, (heads_.q + 2 * heads_.kv) * heads_.dim);
    t.attention = take(M, heads_.q * heads_.dim);
    t.log_sum_exp = plan.take(DType::f32, {pass.batch, heads_.q, pass.sequence});
    t.middle = take(rows, hidden);
    t.middle_rms = plan.take(DType::f32, {rows});
    t.gate_up = take(M, 2 * intermediate_);
  }
  if (checkpointing_ == none) {
    t.normed_input = take(rows, hidden);
    t.normed_middle = take(rows, hidden);
    t.swiglu = take(M, intermediate_);
  }
}

void TransformerBlock::plan_backward(ArenaAllocator& plan, const PassShape& pass) {
  Tensors& t = tensors_;
  t.d_swiglu = plan.take(pass.dtype, {pass.tokens(), t.swiglu.cols()});
  t.d_attention = plan.take(pass.dtype, {pass.tokens(), t.attention.cols()});
  t.d_qkv = plan.take(pass.dtype, {pass.tokens(), t.qkv.cols()});
  t.d_softmax = plan.take(DType::f32, {pass.batch, heads_.q, pass.sequence});
}

Residual TransformerBlock::forward(const BlockContext& ctx, const Residual& in) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, ids_.layer, ctx.pass);
  norm(ctx, ids_.input_norm, t.normed_input, t.input_rms, t.input, in);
  attention_forward(ctx);
  norm(ctx, ids_.post_attention_norm, t.normed_middle, t.middle_rms, t.middle,
       {t.input, ctx.delta});
  mlp_forward(ctx);
  return {t.middle, ctx.delta};
}

void TransformerBlock::attention_forward(const BlockContext& ctx) {
  const UnshardGuard guard(ctx.weights, ids_.self_attn, ctx.pass);
  linear(ctx.stream, ctx.weights, ctx.pass, {ids_.q_proj, ids_.k_proj, ids_.v_proj}, tensors_.qkv,
         gathered(ctx.stream, ctx.tensor, tensors_.normed_input));
  rope(ctx, tensors_.qkv, heads_);
  attend(ctx);
  linear_and_reduce(ctx, ids_.o_proj, tensors_.attention);
}

void TransformerBlock::attend(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  const QkvSlices s(t.qkv, heads_);
  if (ctx.cache) {
    const Tensor& keys = ctx.cache->keys[index_];
    const Tensor& values = ctx.cache->values[index_];
    const auto past = ctx.cache->past;
    for (std::int64_t i = 0; i < ctx.sequence; ++i) {
      ops::copy(ctx.stream, keys.slice_rows(past + i, 1), s.k.slice_rows(i, 1));
      ops::copy(ctx.stream, values.slice_rows(past + i, 1), s.v.slice_rows(i, 1));
    }
    if (past > 0)
      return ops::cached_attention(ctx.stream, t.attention, s.q, keys, values,
                                   attention_shape(ctx, heads_), past);
  }
  ops::attention(ctx.stream, attention_call(ctx, t, heads_));
}

void TransformerBlock::mlp_forward(const BlockContext& ctx) {
  const UnshardGuard guard(ctx.weights, ids_.mlp, ctx.pass);
  linear(ctx.stream, ctx.weights, ctx.pass, {ids_.gate_proj, ids_.up_proj}, tensors_.gate_up,
         gathered(ctx.stream, ctx.tensor, tensors_.normed_middle));
  ops::swiglu(ctx.stream, tensors_.swiglu, tensors_.gate_up);
  linear_and_reduce(ctx, ids_.down_proj, tensors_.swiglu);
}

void TransformerBlock::backward(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, ids_.layer, Pass::backward);
  recompute(ctx);
  mlp_backward(ctx);
  norm_backward(ctx, ids_.post_attention_norm, ctx.delta, t.middle, t.middle_rms);
  attention_backward(ctx);
  norm_backward(ctx, ids_.input_norm, ctx.delta, t.input, t.input_rms);
}

void TransformerBlock::mlp_backward(const BlockContext& ctx) {
  const UnshardGuard guard(ctx.weights, ids_.mlp, Pass::backward);
  const Tensors& t = tensors_;
  const Tensor dy = gathered(ctx.stream, ctx.tensor, ctx.d_residual);
  const auto normed = ctx.tensor.gather(t.normed_middle);
  reduced_linear_backward(ctx, ids_.down_proj, t.d_swiglu, dy, t.swiglu, [&] {
    const Tensor again = checkpointing_ == none ? Tensor() : t.swiglu;
    ops::swiglu_backward(ctx.stream, t.gate_up, again, t.d_swiglu, t.gate_up);
  });
  gathered_linear_backward(ctx, {ids_.gate_proj, ids_.up_proj}, t.gate_up, normed);
}

void TransformerBlock::attention_backward(const BlockContext& ctx) {
  const UnshardGuard guard(ctx.weights, ids_.self_attn, Pass::backward);
  const Tensors& t = tensors_;
  const Tensor dy = gathered(ctx.stream, ctx.tensor, ctx.d_residual);
  const auto normed = ctx.tensor.gather(t.normed_input);
  reduced_linear_backward(ctx, ids_.o_proj, t.d_attention, dy, t.attention, [] {});
  const QkvSlices d(t.d_qkv, heads_);
  ops::attention_backward(ctx.stream, attention_call(ctx, t, heads_),
                          {.dout = t.d_attention,
                           .dq = d.q,
                           .dk = d.k,
                           .dv = d.v,
                           .delta = t.d_softmax,
                           .cos_sin = ctx.cos_sin});
  gathered_linear_backward(ctx, {ids_.q_proj, ids_.k_proj, ids_.v_proj}, t.d_qkv, normed);
}

/// Recomputes what was not kept, except the input to `down`, which the swiglu backward pass
/// provides. The weights stay gathered from here to their use in the backward pass.
void TransformerBlock::recompute(const BlockContext& backward) {
  if (checkpointing_ == none) return;
  const Tensors& t = tensors_;
  BlockContext ctx = backward;
  ctx.pass = Pass::recompute;
  norm(ctx, ids_.input_norm, t.normed_input, t.input_rms, t.input, {t.input, {}});
  Residual middle{t.middle, {}};
  if (checkpointing_ == full) {
    attention_forward(ctx);
    middle = {t.input, ctx.delta};
  }
  norm(ctx, ids_.post_attention_norm, t.normed_middle, t.middle_rms, t.middle, middle);
  if (checkpointing_ != full) return;
  const UnshardGuard guard(ctx.weights, ids_.mlp, ctx.pass);
  linear(ctx.stream, ctx.weights, ctx.pass, {ids_.gate_proj, ids_.up_proj}, t.gate_up,
         gathered(ctx.stream, ctx.tensor, t.normed_middle));
}

}  // namespace llamesh::model
