#include "model/layers/latent_projection.hpp"

#include "model/layers/linear.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

/// The latents' norms have an epsilon of their own, whatever the config says, as in transformers.
constexpr float latent_norm_eps = 1e-6F;

/// Turns d from the norm's gradient into the latent's.
void norm_latent_backward(const BlockContext& ctx, const WeightModule& by, const Tensor& x,
                          const Tensor& d, const NormStatistics& statistics) {
  const UnshardGuard guard(ctx.weights, by.module, Pass::backward);
  ops::rms_norm_backward(ctx.stream, norm_backward_call(ctx, by, {.x = x, .dy = d, .dx = d},
                                                        statistics, Accumulate::no));
}

/// dx = a linear layer's input gradient; also computes its parameters' gradients.
void linear_backward(const BlockContext& ctx, const WeightModule& layer, const Tensor& dx,
                     const Tensor& dy, const Tensor& x) {
  LinearBackward backward(ctx, {layer});
  backward.input(dx, dy);
  backward.weights(dy, x);
}

}  // namespace

LatentProjection::LatentProjection(const ModelConfig& config, const ParameterTable& table,
                                   ModuleId attention, const LayerNames& names)
    : nope_(config.qk_nope_head_dim),
      rope_(config.qk_rope_head_dim),
      value_(config.v_head_dim),
      latent_(config.kv_lora_rank) {
  const auto module = [&](std::string_view name) { return table.weight_module(attention, name); };
  const bool has_q_latent = config.q_lora_rank > 0;
  ids_ = {.q_proj = module(has_q_latent ? names.q_a_proj : names.q_proj),
          .q_norm = {},
          .q_b_proj = {},
          .kv_a_proj = module(names.kv_a_proj),
          .kv_norm = module(names.kv_a_norm),
          .kv_b_proj = module(names.kv_b_proj)};
  if (has_q_latent) {
    ids_.q_norm = module(names.q_a_norm);
    ids_.q_b_proj = module(names.q_b_proj);
  }
  heads_ = table[ids_.kv_b_proj.weight].shape[0] / kv_dim();
  q_latent_ = has_q_latent ? table[ids_.q_proj.weight].shape[0] : 0;
}

void LatentProjection::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                                 ActivationCheckpointing checkpointing) {
  const auto M = pass.tokens();
  Tensors& t = tensors_;
  if (checkpointing != ActivationCheckpointing::full) {
    t.kv_latent = plan.take(pass.dtype, {M, latent_ + rope_});
    t.kv_rms = plan_statistics(plan, ids_.kv_norm, M);
    if (ids_.q_norm) {
      t.q_latent = plan.take(pass.dtype, {M, q_latent_});
      t.q_rms = plan_statistics(plan, *ids_.q_norm, M);
    }
  }
  if (checkpointing != ActivationCheckpointing::none) return;
  t.normed_kv_latent = plan.take(pass.dtype, {M, latent_});
  if (ids_.q_norm) t.normed_q_latent = plan.take(pass.dtype, {M, q_latent_});
}

void LatentProjection::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  const auto M = pass.tokens();
  Tensors& t = tensors_;
  t.kv = plan.take(pass.dtype, {M, heads_ * kv_dim()});
  if (pass.purpose == Purpose::generate) {
    t.absorbed = plan.take(pass.dtype, {M, heads_ * cache_columns()});
    t.mixed = plan.take(pass.dtype, {M, heads_ * latent_});
  }
  if (!pass.has_backward()) return;
  t.d_kv_latent = plan.take(pass.dtype, {M, latent_ + rope_});
  if (ids_.q_norm) t.d_q_latent = plan.take(pass.dtype, {M, q_latent_});
}

ops::LatentHeads LatentProjection::latent_heads(const Tensor& kv_latent, const Tensor& k,
                                                const Tensor& v) const {
  return {.heads = heads_,
          .kv = tensors_.kv,
          .k_rope = kv_latent.slice_cols(latent_, rope_),
          .k = k,
          .v = v};
}

void LatentProjection::norm_latent(const BlockContext& ctx, const WeightModule& by,
                                   const Tensor& from, const Tensor& to,
                                   const NormStatistics& statistics) const {
  const UnshardGuard guard(ctx.weights, by.module, ctx.pass);
  auto call = norm_call(ctx, by, from, to, statistics);
  call.eps = latent_norm_eps;
  ops::rms_norm(ctx.stream, call);
}

void LatentProjection::recompute_normed(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  if (ids_.q_norm) norm_latent(ctx, *ids_.q_norm, t.q_latent, t.normed_q_latent, t.q_rms);
  norm_latent(ctx, ids_.kv_norm, t.kv_latent.slice_cols(0, latent_), t.normed_kv_latent, t.kv_rms);
}

void LatentProjection::forward(const BlockContext& ctx, const Tensor& x, const Heads& to) {
  const Tensors& t = tensors_;
  linear(ctx, {ids_.q_proj}, ids_.q_norm ? t.q_latent : to.q, x);
  linear(ctx, {ids_.kv_a_proj}, t.kv_latent, x);
  recompute_normed(ctx);
  if (ids_.q_b_proj) linear(ctx, {*ids_.q_b_proj}, to.q, t.normed_q_latent);
  linear(ctx, {ids_.kv_b_proj}, t.kv, t.normed_kv_latent);
  ops::latent_heads(ctx.stream, latent_heads(t.kv_latent, to.k, to.v));
}

void LatentProjection::backward(const BlockContext& ctx, const TensorParallel::Gathered& x,
                                const Heads& d) {
  const Tensors& t = tensors_;
  ops::latent_heads_backward(ctx.stream, latent_heads(t.d_kv_latent, d.k, d.v));
  const Tensor d_kv = t.d_kv_latent.slice_cols(0, latent_);
  linear_backward(ctx, ids_.kv_b_proj, d_kv, t.kv, t.normed_kv_latent);
  norm_latent_backward(ctx, ids_.kv_norm, t.kv_latent.slice_cols(0, latent_), d_kv, t.kv_rms);
  if (ids_.q_norm) {
    linear_backward(ctx, *ids_.q_b_proj, t.d_q_latent, d.q, t.normed_q_latent);
    norm_latent_backward(ctx, *ids_.q_norm, t.q_latent, t.d_q_latent, t.q_rms);
  }
  gathered_linear_backward(
      ctx, {{{ids_.q_proj}, ids_.q_norm ? t.d_q_latent : d.q}, {{ids_.kv_a_proj}, t.d_kv_latent}},
      x);
}

void LatentProjection::fill_cache(const BlockContext& ctx, const Tensor& to,
                                  const Tensor& k) const {
  const auto turns = rope_ / 2;
  ops::copy(ctx.stream, to.slice_cols(0, latent_), tensors_.normed_kv_latent);
  ops::copy(ctx.stream, to.slice_cols(latent_, turns), k.slice_cols(0, turns));
  ops::copy(ctx.stream, to.slice_cols(latent_ + turns, turns), k.slice_cols(half(), turns));
}

/// to (M, L + R) = a head's q (M, E) as it is multiplied with cached tokens. The caller enters
/// kv_b.
void LatentProjection::absorb(const BlockContext& ctx, const Tensor& to, const Tensor& q,
                              std::int64_t head) const {
  const auto turns = rope_ / 2, part = nope_ / 2, row = head * kv_dim();
  const Tensor latent = to.slice_cols(0, latent_);
  linear_part_transposed(ctx, ids_.kv_b_proj, {row, part}, latent, q.slice_cols(turns, part),
                         Accumulate::no);
  linear_part_transposed(ctx, ids_.kv_b_proj, {row + part, part}, latent,
                         q.slice_cols(half() + turns, part), Accumulate::yes);
  ops::copy(ctx.stream, to.slice_cols(latent_, turns), q.slice_cols(0, turns));
  ops::copy(ctx.stream, to.slice_cols(latent_ + turns, turns), q.slice_cols(half(), turns));
}

void LatentProjection::attend_cached(const BlockContext& ctx, const Tensor& out, const Tensor& q,
                                     const Tensor& cache, const ops::AttentionShape& shape) const {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, ids_.kv_b_proj.module, ctx.pass);
  const auto columns = cache_columns(), E = nope_ + rope_;
  for (std::int64_t h = 0; h < heads_; ++h)
    absorb(ctx, t.absorbed.slice_cols(h * columns, columns), q.slice_cols(h * E, E), h);
  auto latents = shape;
  latents.kv_heads = 1;
  latents.head_dim = columns;
  latents.value_dim = latent_;
  ops::cached_attention(ctx.stream,
                        {.shape = latents,
                         .q = t.absorbed,
                         .k = cache,
                         .v = cache.slice_cols(0, latent_),
                         .out = t.mixed,
                         .log_sum_exp = {}},
                        ctx.cache->past);
  for (std::int64_t h = 0; h < heads_; ++h)
    linear_part(ctx, ids_.kv_b_proj, {h * kv_dim() + nope_, value_},
                out.slice_cols(h * value_, value_), t.mixed.slice_cols(h * latent_, latent_));
}

}  // namespace llamesh::model
