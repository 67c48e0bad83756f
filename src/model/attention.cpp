#include "model/attention.hpp"

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

std::optional<WeightModule> optional_norm(const ParameterTable& table, ModuleId parent,
                                          std::string_view name) {
  if (!table.find_child(parent, name)) return {};
  return table.weight_module(parent, name);
}

ops::AttentionShape attention_shape(const BlockContext& ctx, const AttentionHeads& heads,
                                    std::int64_t window) {
  return {ctx.batch, ctx.sequence, heads.q, heads.kv, heads.dim, window};
}

/// Rotates q and k, which are neighbours, in one call.
void rotate(const BlockContext& ctx, const Tensor& qk, const AttentionHeads& heads) {
  ops::rope(ctx.stream, qk, ctx.cos_sin, ctx.document_starts, heads.dim, ops::Rotation::forward);
}

}  // namespace

Attention::Attention(const ModelConfig& config, const ParameterTable& table, ModuleId layer,
                     const LayerNames& names, std::size_t index)
    : window_(config.window(index)), rotates_(!table.positions), index_(index) {
  const auto attention = table.child(layer, names.attention);
  ids_ = {.attention = attention,
          .q_proj = table.weight_module(attention, names.q_proj),
          .k_proj = table.weight_module(attention, names.k_proj),
          .v_proj = table.weight_module(attention, names.v_proj),
          .o_proj = table.weight_module(attention, names.o_proj),
          .q_norm = optional_norm(table, attention, "q_norm"),
          .k_norm = optional_norm(table, attention, "k_norm")};
  heads_ = {.q = table[ids_.q_proj.weight].shape[0] / config.head_dim,
            .kv = table[ids_.k_proj.weight].shape[0] / config.head_dim,
            .dim = config.head_dim};
  norms_projections_ = ids_.q_norm && table[ids_.q_norm->weight].role == Role::column;
}

void Attention::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                          ActivationCheckpointing checkpointing) {
  const auto M = pass.tokens();
  Tensors& t = tensors_;
  if (checkpointing != ActivationCheckpointing::full) {
    t.qkv = plan.take(pass.dtype, {M, (heads_.q + 2 * heads_.kv) * heads_.dim});
    if (ids_.q_norm) {
      t.q_norm_rms = plan.take(DType::f32, {M, norms_projections_ ? 1 : heads_.q});
      t.k_norm_rms = plan.take(DType::f32, {M, norms_projections_ ? 1 : heads_.kv});
    }
    t.out = plan.take(pass.dtype, {M, heads_.q * heads_.dim});
    t.log_sum_exp = plan.take(DType::f32, {pass.batch, heads_.q, pass.sequence});
  }
  if (checkpointing == ActivationCheckpointing::none && ids_.q_norm)
    t.normed_qk = plan.take(pass.dtype, {M, (heads_.q + heads_.kv) * heads_.dim});
}

void Attention::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  Tensors& t = tensors_;
  if (norms_projections_ && pass.tensor_ranks > 1)
    t.row_sums = plan.take(DType::f32, {pass.tensor_ranks, 2 * pass.tokens()});
  if (!pass.has_backward()) return;
  t.d_out = plan.take(pass.dtype, {pass.tokens(), t.out.cols()});
  t.d_qkv = plan.take(pass.dtype, {pass.tokens(), t.qkv.cols()});
  t.d_softmax = plan.take(DType::f32, {pass.batch, heads_.q, pass.sequence});
}

Attention::Slices Attention::slices(const Tensor& qkv) const {
  const auto q = heads_.q * heads_.dim, kv = heads_.kv * heads_.dim;
  return {qkv.slice_cols(0, q), qkv.slice_cols(q, kv), qkv.slice_cols(q + kv, kv)};
}

/// Returns q and k as they are compared, and v.
Attention::Slices Attention::attended() const {
  auto s = slices(tensors_.qkv);
  if (!ids_.q_norm) return s;
  s.q = tensors_.normed_qk.slice_cols(0, s.q.cols());
  s.k = tensors_.normed_qk.slice_cols(s.q.cols(), s.k.cols());
  return s;
}

ops::AttentionCall Attention::call(const BlockContext& ctx) const {
  const auto s = attended();
  return {.shape = attention_shape(ctx, heads_, window_),
          .q = s.q,
          .k = s.k,
          .v = s.v,
          .document_starts = ctx.document_starts,
          .out = tensors_.out,
          .log_sum_exp = tensors_.log_sum_exp};
}

void Attention::forward(const BlockContext& ctx, Tensor x, Tensor y) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, ids_.attention, ctx.pass);
  linear(ctx, {ids_.q_proj, ids_.k_proj, ids_.v_proj}, t.qkv, gathered(ctx.stream, ctx.tensor, x));
  if (ids_.q_norm)
    normalize(ctx);
  else if (rotates_)
    rotate(ctx, t.qkv.slice_cols(0, (heads_.q + heads_.kv) * heads_.dim), heads_);
  attend(ctx);
  linear_and_reduce(ctx, ids_.o_proj, y, t.out);
}

void Attention::attend(const BlockContext& ctx) {
  if (ctx.cache) {
    const auto s = attended();
    const Tensor& keys = ctx.cache->keys[index_];
    const Tensor& values = ctx.cache->values[index_];
    const auto past = ctx.cache->past;
    ops::copy(ctx.stream, keys.slice_rows(past, ctx.sequence), s.k);
    ops::copy(ctx.stream, values.slice_rows(past, ctx.sequence), s.v);
    if (past > 0)
      return ops::cached_attention(ctx.stream, tensors_.out, s.q, keys, values,
                                   attention_shape(ctx, heads_, window_), past);
  }
  ops::attention(ctx.stream, call(ctx));
}

void Attention::recompute_normed(const BlockContext& ctx) {
  if (!ids_.q_norm) return;
  const UnshardGuard guard(ctx.weights, ids_.attention, ctx.pass);
  normalize(ctx);
}

/// Gathers what sum_up(q_sums, k_sums) writes: each rank's sums (M) for its columns of q and of k.
/// Returns (t, 2 M).
template <class SumUp>
Tensor Attention::gathered_sums(const BlockContext& ctx, SumUp sum_up) const {
  const Tensor& all = tensors_.row_sums;
  const auto M = all.cols() / 2;
  const Tensor mine = all.slice_rows(ctx.tensor.rank(), 1).reshape({2 * M});
  sum_up(mine.slice(0, M), mine.slice(M, M));
  ctx.stream.wait(ctx.tensor.all_gather(all, mine));
  return all;
}

/// normed_qk = rope(norm(q), norm(k)).
void Attention::normalize(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  const UnshardGuard q_guard(ctx.weights, ids_.q_norm->module, ctx.pass);
  const UnshardGuard k_guard(ctx.weights, ids_.k_norm->module, ctx.pass);
  const auto from = slices(t.qkv), to = attended();
  const auto norm = [&](Tensor x, const WeightModule& by, Tensor y, Tensor rms) {
    return ops::RmsNormCall{.x = x,
                            .w = ctx.weights.parameter(by.weight),
                            .eps = static_cast<float>(ctx.config.rms_norm_eps),
                            .y = y,
                            .inverse_rms = rms};
  };
  auto q = norm(from.q, *ids_.q_norm, to.q, t.q_norm_rms);
  auto k = norm(from.k, *ids_.k_norm, to.k, t.k_norm_rms);
  if (t.row_sums) {
    const Tensor sums = gathered_sums(ctx, [&](const Tensor& q_sums, const Tensor& k_sums) {
      ops::rms_norm_row_sums(ctx.stream, q, q_sums);
      ops::rms_norm_row_sums(ctx.stream, k, k_sums);
    });
    q.row_sums = sums.slice_cols(0, ctx.batch * ctx.sequence);
    k.row_sums = sums.slice_cols(q.row_sums.cols(), q.row_sums.cols());
  }
  ops::rms_norm(ctx.stream, q);
  ops::rms_norm(ctx.stream, k);
  if (rotates_) rotate(ctx, t.normed_qk, heads_);
}

/// Turns d.q and d.k from the gradients of the norms' outputs into those of their inputs.
void Attention::normalize_backward(const BlockContext& ctx, const Slices& d) {
  const Tensors& t = tensors_;
  const UnshardGuard q_guard(ctx.weights, ids_.q_norm->module, Pass::backward);
  const UnshardGuard k_guard(ctx.weights, ids_.k_norm->module, Pass::backward);
  const auto x = slices(t.qkv);
  const auto norm = [&](Tensor input, const WeightModule& by, Tensor rms, Tensor gradient) {
    const auto [dw, accumulate] = ctx.weights.gradient(by.weight);
    return ops::RmsNormBackwardCall{.x = input,
                                    .w = ctx.weights.parameter(by.weight),
                                    .inverse_rms = rms,
                                    .dy = gradient,
                                    .dx = gradient,
                                    .accumulate_dx = Accumulate::no,
                                    .dw = dw,
                                    .accumulate_dw = accumulate};
  };
  auto q = norm(x.q, *ids_.q_norm, t.q_norm_rms, d.q);
  auto k = norm(x.k, *ids_.k_norm, t.k_norm_rms, d.k);
  if (t.row_sums) {
    const Tensor sums = gathered_sums(ctx, [&](const Tensor& q_sums, const Tensor& k_sums) {
      ops::rms_norm_backward_row_sums(ctx.stream, q, q_sums);
      ops::rms_norm_backward_row_sums(ctx.stream, k, k_sums);
    });
    q.row_sums = sums.slice_cols(0, ctx.batch * ctx.sequence);
    k.row_sums = sums.slice_cols(q.row_sums.cols(), q.row_sums.cols());
  }
  ops::rms_norm_backward(ctx.stream, q);
  ops::rms_norm_backward(ctx.stream, k);
}

void Attention::backward(const BlockContext& ctx, Tensor x, Tensor dy) {
  const UnshardGuard guard(ctx.weights, ids_.attention, Pass::backward);
  const Tensors& t = tensors_;
  const Tensor dy_whole = gathered(ctx.stream, ctx.tensor, dy);
  const auto x_whole = ctx.tensor.gather(x);
  reduced_linear_backward(ctx, ids_.o_proj, t.d_out, {dy_whole, dy}, t.out, [] {});
  const auto d = slices(t.d_qkv);
  ops::attention_backward(ctx.stream, call(ctx),
                          {.dout = t.d_out,
                           .dq = d.q,
                           .dk = d.k,
                           .dv = d.v,
                           .delta = t.d_softmax,
                           .cos_sin = rotates_ ? ctx.cos_sin : Tensor()});
  if (ids_.q_norm) normalize_backward(ctx, d);
  gathered_linear_backward(ctx, {ids_.q_proj, ids_.k_proj, ids_.v_proj}, t.d_qkv, x_whole);
}

}  // namespace llamesh::model
