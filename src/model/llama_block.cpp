#include "model/llama_block.hpp"

#include "model/linear_layer.hpp"
#include "model/norm_layer.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

using enum ActivationCheckpointing;

ops::AttentionShape attention_shape(const BlockContext& x) {
  return {x.batch, x.sequence, x.config.num_attention_heads, x.config.num_key_value_heads,
          x.config.head_dim};
}

/// q, k and v as column slices of (M, (H + 2 K) E).
struct QkvSlices {
  QkvSlices(const BlockContext& x, const Tensor& qkv)
      : q(qkv.slice_cols(0, x.config.num_attention_heads * x.config.head_dim)),
        k(qkv.slice_cols(q.cols(), x.config.num_key_value_heads * x.config.head_dim)),
        v(qkv.slice_cols(q.cols() + k.cols(), k.cols())) {}
  Tensor q, k, v;
};

ops::AttentionCall attention_call(const BlockContext& x, const LlamaBlock::Tensors& t) {
  const QkvSlices s(x, t.qkv);
  return {.shape = attention_shape(x),
          .q = s.q,
          .k = s.k,
          .v = s.v,
          .document_starts = x.document_starts,
          .out = t.attention,
          .log_sum_exp = t.log_sum_exp};
}

void rope(const BlockContext& x, const Tensor& qkv) {
  // q and k are adjacent, so one call rotates both.
  const QkvSlices s(x, qkv);
  ops::rope(x.stream, qkv.slice_cols(0, s.q.cols() + s.k.cols()), x.cos_sin, x.document_starts,
            x.config.head_dim, ops::Rotation::forward);
}

/// normed = norm(sum), sum = in.x + in.delta. Without a delta, `sum` is already in.x.
void norm(const BlockContext& x, const Leaf& leaf, Tensor normed, Tensor rms, Tensor sum,
          const Residual& in) {
  const Entered entered(x.weights, leaf.module, x.pass);
  rms_norm(x, {.x = in.x,
               .delta = in.delta,
               .sum = in.delta ? sum : Tensor(),
               .w = x.weights.parameter(leaf.weight),
               .eps = static_cast<float>(x.config.rms_norm_eps),
               .y = normed,
               .inverse_rms = rms});
}

/// Adds the gradient through a norm to d_residual.
void norm_backward(const BlockContext& x, const Leaf& leaf, Tensor d_normed, Tensor input,
                   Tensor rms) {
  const Entered entered(x.weights, leaf.module, Pass::backward);
  const auto [dw, how] = x.weights.gradient(leaf.weight);
  rms_norm_backward(x, {.x = input,
                        .w = x.weights.parameter(leaf.weight),
                        .inverse_rms = rms,
                        .dy = d_normed,
                        .dx = x.d_residual,
                        .accumulate_dx = Accumulate::yes,
                        .dw = dw,
                        .accumulate_dw = how});
}

/// x.delta = the layer's output. If the matrix is split by inputs, each rank has a partial sum.
void linear_and_reduce(const BlockContext& x, const Leaf& layer, Tensor input) {
  linear(x.stream, x.weights, x.pass, {layer}, x.tensor.summand(x.delta), input);
  x.stream.wait(x.tensor.reduce(x.delta));
}

void linear_backward(const BlockContext& x, const Leaf& layer, Tensor dx, const ColumnBlocks& dy,
                     Tensor input) {
  LinearBackward backward(x.stream, x.weights, {layer});
  backward.input(dx, dy);
  backward.weights(dy, input);
}

/// Backward pass for layers with a gathered input: x.delta = gradient of `normed`. Its reduction
/// overlaps with the weight-gradient GEMMs, which wait for the gather.
void gathered_linear_backward(const BlockContext& x, std::initializer_list<Leaf> layers, Tensor dy,
                              const TensorParallel::Gathered& normed) {
  LinearBackward backward(x.stream, x.weights, layers);
  backward.input(x.tensor.summand(x.delta), dy);
  const auto reduced = x.tensor.reduce(x.delta);
  x.stream.wait(normed.ready);
  backward.weights(dy, normed.tensor);
  x.stream.wait(reduced);
}

}  // namespace

std::unique_ptr<Block> make_block(const LlamaConfig& config, const ParameterTable& table,
                                  std::size_t index) {
  return std::make_unique<LlamaBlock>(config, table.layers[index], index);
}

void LlamaBlock::plan(Planner& plan, const PassShape& pass, ActivationCheckpointing checkpointing,
                      const Block* last) {
  checkpointing_ = checkpointing;
  if (last) tensors_ = static_cast<const LlamaBlock*>(last)->tensors_;
  if (!last || pass.has_backward()) plan_kept(plan, pass);
  if (!last && pass.has_backward()) plan_backward(plan, pass);
}

/// Takes separate tensors for what the layer keeps; the others remain shared.
void LlamaBlock::plan_kept(Planner& plan, const PassShape& pass) {
  const auto take = [&](std::int64_t rows, std::int64_t cols) {
    return plan.take(pass.dtype, {rows, cols});
  };
  const auto M = pass.tokens();
  const auto heads = config_.num_attention_heads;
  const auto qkv = (heads + 2 * config_.num_key_value_heads) * config_.head_dim;
  Tensors& t = tensors_;
  const auto [rows, hidden] = pass.residual;
  t.input = take(rows, hidden);
  if (checkpointing_ != full) {
    t.input_rms = plan.take(DType::f32, {rows});
    t.qkv = take(M, qkv);
    t.attention = take(M, heads * config_.head_dim);
    t.log_sum_exp = plan.take(DType::f32, {pass.batch, heads, pass.sequence});
    t.middle = take(rows, hidden);
    t.middle_rms = plan.take(DType::f32, {rows});
    t.gate_up = take(M, 2 * config_.intermediate_size);
  }
  if (checkpointing_ == none) {
    t.normed_input = take(rows, hidden);
    t.normed_middle = take(rows, hidden);
    t.swiglu = take(M, config_.intermediate_size);
  }
}

void LlamaBlock::plan_backward(Planner& plan, const PassShape& pass) {
  const auto heads = config_.num_attention_heads;
  Tensors& t = tensors_;
  t.d_swiglu = plan.take(pass.dtype, {pass.tokens(), t.swiglu.cols()});
  t.d_attention = plan.take(pass.dtype, {pass.tokens(), t.attention.cols()});
  t.d_qkv = plan.take(pass.dtype, {pass.tokens(), t.qkv.cols()});
  t.d_softmax = plan.take(DType::f32, {pass.batch, heads, pass.sequence});
}

Residual LlamaBlock::forward(const BlockContext& x, const Residual& in) {
  const Tensors& t = tensors_;
  const Entered entered(x.weights, ids_.layer, x.pass);
  norm(x, ids_.input_norm, t.normed_input, t.input_rms, t.input, in);
  attention_forward(x);
  norm(x, ids_.post_attention_norm, t.normed_middle, t.middle_rms, t.middle, {t.input, x.delta});
  mlp_forward(x);
  return {t.middle, x.delta};
}

void LlamaBlock::attention_forward(const BlockContext& x) {
  const Entered entered(x.weights, ids_.self_attn, x.pass);
  linear(x.stream, x.weights, x.pass, {ids_.q_proj, ids_.k_proj, ids_.v_proj}, tensors_.qkv,
         gathered(x.stream, x.tensor, tensors_.normed_input));
  rope(x, tensors_.qkv);
  attend(x);
  linear_and_reduce(x, ids_.o_proj, tensors_.attention);
}

void LlamaBlock::attend(const BlockContext& x) {
  const Tensors& t = tensors_;
  const QkvSlices s(x, t.qkv);
  if (x.cache) {
    const Tensor& keys = x.cache->keys[index_];
    const Tensor& values = x.cache->values[index_];
    const auto past = x.cache->past;
    for (std::int64_t i = 0; i < x.sequence; ++i) {
      ops::copy(x.stream, keys.slice_rows(past + i, 1), s.k.slice_rows(i, 1));
      ops::copy(x.stream, values.slice_rows(past + i, 1), s.v.slice_rows(i, 1));
    }
    if (past > 0)
      return ops::cached_attention(x.stream, t.attention, s.q, keys, values, attention_shape(x),
                                   past);
  }
  ops::attention(x.stream, attention_call(x, t));
}

void LlamaBlock::mlp_forward(const BlockContext& x) {
  const Entered entered(x.weights, ids_.mlp, x.pass);
  linear(x.stream, x.weights, x.pass, {ids_.gate_proj, ids_.up_proj}, tensors_.gate_up,
         gathered(x.stream, x.tensor, tensors_.normed_middle));
  ops::swiglu(x.stream, tensors_.swiglu, tensors_.gate_up);
  linear_and_reduce(x, ids_.down_proj, tensors_.swiglu);
}

void LlamaBlock::backward(const BlockContext& x) {
  const Tensors& t = tensors_;
  const Entered entered(x.weights, ids_.layer, Pass::backward);
  recompute(x);
  mlp_backward(x);
  norm_backward(x, ids_.post_attention_norm, x.delta, t.middle, t.middle_rms);
  attention_backward(x);
  norm_backward(x, ids_.input_norm, x.delta, t.input, t.input_rms);
}

void LlamaBlock::mlp_backward(const BlockContext& x) {
  const Entered entered(x.weights, ids_.mlp, Pass::backward);
  const Tensors& t = tensors_;
  const ColumnBlocks dy = gathered(x.stream, x.tensor, x.d_residual);
  const auto normed = x.tensor.gather(t.normed_middle);
  {
    LinearBackward down(x.stream, x.weights, {ids_.down_proj});
    down.input(t.d_swiglu, dy);
    const Tensor again = checkpointing_ == none ? Tensor() : t.swiglu;
    ops::swiglu_backward(x.stream, t.gate_up, again, t.d_swiglu, t.gate_up);
    down.weights(dy, t.swiglu);
  }
  gathered_linear_backward(x, {ids_.gate_proj, ids_.up_proj}, t.gate_up, normed);
}

void LlamaBlock::attention_backward(const BlockContext& x) {
  const Entered entered(x.weights, ids_.self_attn, Pass::backward);
  const Tensors& t = tensors_;
  const ColumnBlocks dy = gathered(x.stream, x.tensor, x.d_residual);
  const auto normed = x.tensor.gather(t.normed_input);
  linear_backward(x, ids_.o_proj, t.d_attention, dy, t.attention);
  const QkvSlices d(x, t.d_qkv);
  ops::attention_backward(x.stream, attention_call(x, t),
                          {.dout = t.d_attention,
                           .dq = d.q,
                           .dk = d.k,
                           .dv = d.v,
                           .delta = t.d_softmax,
                           .cos_sin = x.cos_sin});
  gathered_linear_backward(x, {ids_.q_proj, ids_.k_proj, ids_.v_proj}, t.d_qkv, normed);
}

/// Recomputes what was not kept, except the input to `down`, which the swiglu backward pass
/// provides. The weights stay gathered from here to their use in the backward pass.
void LlamaBlock::recompute(const BlockContext& backward) {
  if (checkpointing_ == none) return;
  const Tensors& t = tensors_;
  BlockContext x = backward;
  x.pass = Pass::recompute;
  norm(x, ids_.input_norm, t.normed_input, t.input_rms, t.input, {t.input, {}});
  Residual middle{t.middle, {}};
  if (checkpointing_ == full) {
    attention_forward(x);
    middle = {t.input, x.delta};
  }
  norm(x, ids_.post_attention_norm, t.normed_middle, t.middle_rms, t.middle, middle);
  if (checkpointing_ != full) return;
  const Entered entered(x.weights, ids_.mlp, x.pass);
  linear(x.stream, x.weights, x.pass, {ids_.gate_proj, ids_.up_proj}, t.gate_up,
         gathered(x.stream, x.tensor, t.normed_middle));
}

}  // namespace llamesh::model
