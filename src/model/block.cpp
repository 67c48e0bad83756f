#include "model/block.hpp"

#include "model/linear_layer.hpp"
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

void rotate(const BlockContext& x, const Tensor& qkv, ops::Rotation rotation) {
  // q and k are neighbours: one call turns the heads of both.
  const QkvSlices s(x, qkv);
  ops::rope(x.stream, qkv.slice_cols(0, s.q.cols() + s.k.cols()), x.cos_sin, x.document_starts,
            x.config.head_dim, rotation);
}

/// normed = norm(sum), sum = in.x + in.delta; without a delta `sum` is in.x already.
void norm(const BlockContext& x, const Leaf& leaf, Tensor normed, Tensor rms, Tensor sum,
          const Residual& in) {
  const Entered entered(x.weights, leaf.module, x.pass);
  ops::rms_norm(x.stream, normed, rms, in.delta ? sum : Tensor(), in.x, in.delta,
                x.weights.parameter(leaf.weight), static_cast<float>(x.config.rms_norm_eps));
}

/// Adds to d_residual what comes back through a norm.
void norm_backward(const BlockContext& x, const Leaf& leaf, Tensor d_normed, Tensor input,
                   Tensor rms) {
  const Entered entered(x.weights, leaf.module, Pass::backward);
  const auto [dw, how] = x.weights.gradient(leaf.weight);
  ops::rms_norm_backward(x.stream, x.scratch.d_residual, Accumulate::yes, dw, how, d_normed, input,
                         rms, x.weights.parameter(leaf.weight));
}

void attention_forward(const BlockContext& x, const LayerIds& l, const BlockActivations& a) {
  const Entered entered(x.weights, l.self_attn, x.pass);
  linear(x.stream, x.weights, x.pass, {l.q_proj, l.k_proj, l.v_proj}, a.qkv, a.normed_input);
  rotate(x, a.qkv, ops::Rotation::forward);
  const QkvSlices s(x, a.qkv);
  ops::attention(x.stream, a.attention, a.log_sum_exp, s.q, s.k, s.v, x.document_starts,
                 attention_shape(x));
  linear(x.stream, x.weights, x.pass, {l.o_proj}, x.scratch.delta, a.attention);
}

void mlp_forward(const BlockContext& x, const LayerIds& l, const BlockActivations& a) {
  const Entered entered(x.weights, l.mlp, x.pass);
  linear(x.stream, x.weights, x.pass, {l.gate_proj, l.up_proj}, a.gate_up, a.normed_middle);
  ops::swiglu(x.stream, a.swiglu, a.gate_up);
  linear(x.stream, x.weights, x.pass, {l.down_proj}, x.scratch.delta, a.swiglu);
}

void mlp_backward(const BlockContext& x, const LayerIds& l, const BlockActivations& a) {
  const Entered entered(x.weights, l.mlp, Pass::backward);
  const Scratch& s = x.scratch;
  linear_backward(x.stream, x.weights, {l.down_proj}, s.d_swiglu, Accumulate::no, s.d_residual,
                  a.swiglu);
  ops::swiglu_backward(x.stream, a.gate_up, s.d_swiglu, a.gate_up);
  linear_backward(x.stream, x.weights, {l.gate_proj, l.up_proj}, s.delta, Accumulate::no, a.gate_up,
                  a.normed_middle);
}

void attention_backward(const BlockContext& x, const LayerIds& l, const BlockActivations& a) {
  const Entered entered(x.weights, l.self_attn, Pass::backward);
  const Scratch& s = x.scratch;
  linear_backward(x.stream, x.weights, {l.o_proj}, s.d_attention, Accumulate::no, s.d_residual,
                  a.attention);
  const QkvSlices in(x, a.qkv);
  const QkvSlices d(x, s.d_qkv);
  ops::attention_backward(x.stream, d.q, d.k, d.v, s.d_attention, in.q, in.k, in.v, a.attention,
                          a.log_sum_exp, s.d_softmax, x.document_starts, attention_shape(x));
  rotate(x, s.d_qkv, ops::Rotation::backward);
  linear_backward(x.stream, x.weights, {l.q_proj, l.k_proj, l.v_proj}, s.delta, Accumulate::no,
                  s.d_qkv, a.normed_input);
}

/// Computes again what was not kept. The weights stay gathered from here to their backward use.
void recompute(const BlockContext& backward, const LayerIds& l, const BlockActivations& a) {
  if (a.checkpointing == none) return;
  BlockContext x = backward;
  x.pass = Pass::recompute;
  norm(x, l.input_norm, a.normed_input, a.input_rms, a.input, {a.input, {}});
  Residual middle{a.middle, {}};
  if (a.checkpointing == full) {
    attention_forward(x, l, a);
    middle = {a.input, x.scratch.delta};
  }
  norm(x, l.post_attention_norm, a.normed_middle, a.middle_rms, a.middle, middle);
  const Entered entered(x.weights, l.mlp, x.pass);
  if (a.checkpointing == full)
    linear(x.stream, x.weights, x.pass, {l.gate_proj, l.up_proj}, a.gate_up, a.normed_middle);
  ops::swiglu(x.stream, a.swiglu, a.gate_up);
}

}  // namespace

Residual block_forward(const BlockContext& x, const LayerIds& l, const Residual& in,
                       const BlockActivations& a) {
  const Entered entered(x.weights, l.layer, x.pass);
  norm(x, l.input_norm, a.normed_input, a.input_rms, a.input, in);
  attention_forward(x, l, a);
  norm(x, l.post_attention_norm, a.normed_middle, a.middle_rms, a.middle,
       {a.input, x.scratch.delta});
  mlp_forward(x, l, a);
  return {a.middle, x.scratch.delta};
}

void block_backward(const BlockContext& x, const LayerIds& l, const BlockActivations& a) {
  const Entered entered(x.weights, l.layer, Pass::backward);
  recompute(x, l, a);
  mlp_backward(x, l, a);
  norm_backward(x, l.post_attention_norm, x.scratch.delta, a.middle, a.middle_rms);
  attention_backward(x, l, a);
  norm_backward(x, l.input_norm, x.scratch.delta, a.input, a.input_rms);
}

}  // namespace llamesh::model
