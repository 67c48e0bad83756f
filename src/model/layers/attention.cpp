#include "model/layers/attention.hpp"

#include "model/layers/norm.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

std::optional<WeightModule> optional_module(const ParameterTable& table, ModuleId parent,
                                            std::string_view name) {
  if (!table.find_child(parent, name)) return {};
  return table.weight_module(parent, name);
}

}  // namespace

Attention::Attention(const ModelConfig& config, const ParameterTable& table, ModuleId layer,
                     const LayerTraits& traits, std::size_t index)
    : window_(traits.window),
      score_divisor_(traits.score_divisor),
      softcap_(traits.softcap),
      rotates_(traits.rope),
      rotates_before_norm_(traits.rope && traits.rotates_before_norm),
      index_(index) {
  const auto& names = traits.names;
  const auto attention = table.child(layer, names.attention);
  ids_ = {.attention = attention,
          .q_proj = optional_module(table, attention, names.q_proj),
          .k_proj = optional_module(table, attention, names.k_proj),
          .v_proj = optional_module(table, attention, names.v_proj),
          .o_proj = table.weight_module(attention, names.o_proj),
          .q_norm = optional_module(table, attention, names.q_norm),
          .k_norm = optional_module(table, attention, names.k_norm)};
  if (!names.sinks.empty()) sinks_ = table[attention].parameters.front();
  if (config.has_latent_attention()) latent_.emplace(config, table, attention, names);
  const auto heads = [&](const std::optional<WeightModule>& linear) {
    return latent_ ? latent_->heads() : table[linear->weight].shape[0] / config.head_dim;
  };
  heads_ = {.q = heads(ids_.q_proj),
            .kv = heads(ids_.k_proj),
            .dim = config.head_dim,
            .value_dim = config.value_dim()};
  norms_projections_ = ids_.q_norm && table[ids_.q_norm->weight].role == Role::column;
}

void Attention::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                          ActivationCheckpointing checkpointing) {
  const auto M = pass.tokens();
  Tensors& t = tensors_;
  if (latent_) latent_->plan_kept(plan, pass, checkpointing);
  if (checkpointing != ActivationCheckpointing::full) {
    t.qkv = plan.take(pass.dtype, {M, qkv_columns()});
    if (ids_.q_norm) {
      t.q_norm_rms = plan.take(DType::f32, {M, norms_projections_ ? 1 : heads_.q});
      t.k_norm_rms = plan.take(DType::f32, {M, norms_projections_ ? 1 : heads_.kv});
    }
    t.out = plan.take(pass.dtype, {M, heads_.q * heads_.value_dim});
    t.log_sum_exp = plan.take(DType::f32, {pass.batch, heads_.q, pass.sequence});
  }
  if (checkpointing == ActivationCheckpointing::none && ids_.q_norm)
    t.normed_qk = plan.take(pass.dtype, {M, (heads_.q + heads_.kv) * heads_.dim});
}

void Attention::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  Tensors& t = tensors_;
  if (norms_projections_ && pass.tensor_ranks > 1)
    t.row_sums = plan.take(DType::f32, {pass.tensor_ranks, 2 * pass.tokens()});
  if (latent_) latent_->plan_shared(plan, pass);
  if (!pass.has_backward()) return;
  t.d_out = plan.take(pass.dtype, {pass.tokens(), heads_.q * heads_.value_dim});
  t.d_qkv = plan.take(pass.dtype, {pass.tokens(), qkv_columns()});
  t.d_softmax = plan.take(DType::f32, {pass.batch, heads_.q, pass.sequence});
}

Attention::Slices Attention::slices(const Tensor& qkv) const {
  const auto q = heads_.q * heads_.dim, k = heads_.kv * heads_.dim;
  return {qkv.slice_cols(0, q), qkv.slice_cols(q, k),
          qkv.slice_cols(q + k, heads_.kv * heads_.value_dim)};
}

/// Returns q and k as they are compared, and v.
Attention::Slices Attention::attended() const {
  auto s = slices(tensors_.qkv);
  if (!ids_.q_norm) return s;
  s.q = tensors_.normed_qk.slice_cols(0, s.q.cols());
  s.k = tensors_.normed_qk.slice_cols(s.q.cols(), s.k.cols());
  return s;
}

ops::AttentionShape Attention::shape(const BlockContext& ctx) const {
  ops::AttentionShape shape{.batch = ctx.batch,
                            .sequence = ctx.sequence,
                            .heads = heads_.q,
                            .kv_heads = heads_.kv,
                            .head_dim = heads_.dim,
                            .window = window_,
                            .softcap = softcap_,
                            .value_dim = heads_.value_dim};
  if (score_divisor_ > 0) shape.score_divisor = score_divisor_;
  return shape;
}

/// `all`: what this rank's queries see, of all ranks.
ops::AttentionCall Attention::call(const BlockContext& ctx, const KeysValues& all) const {
  auto rows = shape(ctx);
  if (!ctx.cache) rows.positions = ctx.positions;
  rows.keys = all.keys.rows() / ctx.batch;
  return {.shape = rows,
          .q = attended().q,
          .k = all.keys,
          .v = all.values,
          .document_starts = ctx.document_starts,
          .out = tensors_.out,
          .log_sum_exp = tensors_.log_sum_exp};
}

void Attention::rotate(const BlockContext& ctx, const Tensor& heads, const Tensor& cos_sin,
                       ops::Rotation rotation) const {
  ops::rope(ctx.stream, heads, cos_sin, ctx.document_starts, ctx.positions, rotation);
}

/// Rotates q and k, which are neighbors.
void Attention::rotate(const BlockContext& ctx, const Tensor& qk, ops::Rotation rotation) const {
  const auto& table = ctx.rope[index_];
  if (table.same()) return rotate(ctx, qk, table.keys, rotation);
  const auto q = heads_.q * heads_.dim;
  rotate(ctx, qk.slice_cols(0, q), table.queries, rotation);
  rotate(ctx, qk.slice_cols(q, qk.cols() - q), table.keys, rotation);
}

/// Computes q, k and v from x (M, D), and gathers keys and values. If no norm spans both, the
/// gather overlaps with the projection to queries.
KeysValues Attention::project(const BlockContext& ctx, const Tensor& x) {
  const Tensor& qkv = tensors_.qkv;
  const auto s = attended();
  const KeysValues mine{s.k, s.v};
  if (latent_) {
    latent_->forward(ctx, x, {s.q, s.k, s.v});
    if (rotates_) rotate(ctx, qkv.slice_cols(0, s.q.cols() + s.k.cols()), ops::Rotation::forward);
    return ctx.context.gather(mine, [] {});
  }
  if (ctx.context.size() > 1 && !ids_.q_norm) {
    linear(ctx, {*ids_.k_proj, *ids_.v_proj}, qkv.slice_cols(s.q.cols(), 2 * s.k.cols()), x);
    if (rotates_) rotate(ctx, s.k, ctx.rope[index_].keys, ops::Rotation::forward);
    return ctx.context.gather(mine, [&] {
      linear(ctx, {*ids_.q_proj}, s.q, x);
      if (rotates_) rotate(ctx, s.q, ctx.rope[index_].queries, ops::Rotation::forward);
    });
  }
  linear(ctx, {*ids_.q_proj, *ids_.k_proj, *ids_.v_proj}, qkv, x);
  if (rotates_ && (!ids_.q_norm || rotates_before_norm_))
    rotate(ctx, qkv.slice_cols(0, s.q.cols() + s.k.cols()), ops::Rotation::forward);
  if (ids_.q_norm) normalize(ctx);
  return ctx.context.gather(mine, [] {});
}

void Attention::forward(const BlockContext& ctx, Tensor x, Tensor y) {
  const UnshardGuard guard(ctx.weights, ids_.attention, ctx.pass);
  const auto all = project(ctx, gathered(ctx.stream, ctx.tensor, x));
  if (ctx.pass == Pass::recompute) recomputed_ = all;
  attend(ctx, all);
  if (y) linear_and_reduce(ctx, ids_.o_proj, y, tensors_.out);
}

CacheColumns Attention::cache_columns() const {
  if (latent_) return {latent_->cache_columns(), 0};
  return {heads_.kv * heads_.dim, heads_.kv * heads_.value_dim};
}

/// Caches the pass's keys and values. If earlier ones are cached, attends to all and returns true.
bool Attention::attend_cached(const BlockContext& ctx, const KeysValues& mine) {
  const auto& cache = *ctx.cache;
  const Tensor &keys = cache.keys[index_], &values = cache.values[index_];
  const auto now = [&](const Tensor& rows) { return rows.slice_rows(cache.past, ctx.sequence); };
  const Tensor q = attended().q;
  if (latent_) {
    latent_->fill_cache(ctx, now(keys), mine.keys);
    if (cache.past > 0) latent_->attend_cached(ctx, tensors_.out, q, keys, shape(ctx));
  } else {
    ops::copy(ctx.stream, now(keys), mine.keys);
    ops::copy(ctx.stream, now(values), mine.values);
    if (cache.past > 0)
      ops::cached_attention(ctx.stream,
                            {.shape = shape(ctx),
                             .q = q,
                             .k = keys,
                             .v = values,
                             .out = tensors_.out,
                             .log_sum_exp = tensors_.log_sum_exp},
                            cache.past);
  }
  return cache.past > 0;
}

void Attention::attend(const BlockContext& ctx, const KeysValues& all) {
  if (!ctx.cache || !attend_cached(ctx, all)) ops::attention(ctx.stream, call(ctx, all));
  if (sinks_) ops::attention_sinks(ctx.stream, sinks(ctx));
}

ops::AttentionSinks Attention::sinks(const BlockContext& ctx) const {
  return {.sinks = ctx.weights.parameter(*sinks_),
          .out = tensors_.out,
          .log_sum_exp = tensors_.log_sum_exp};
}

void Attention::recompute_normed(const BlockContext& ctx) {
  if (!ids_.q_norm && !latent_) return;
  const UnshardGuard guard(ctx.weights, ids_.attention, ctx.pass);
  if (latent_) latent_->recompute_normed(ctx);
  if (ids_.q_norm) normalize(ctx);
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

/// normed_qk = rope(norm(q), norm(k)), or only the norms if they follow the rotation.
void Attention::normalize(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  const UnshardGuard q_guard(ctx.weights, ids_.q_norm->module, ctx.pass);
  const UnshardGuard k_guard(ctx.weights, ids_.k_norm->module, ctx.pass);
  const auto from = slices(t.qkv), to = attended();
  auto q = norm_call(ctx, *ids_.q_norm, from.q, to.q, {t.q_norm_rms, {}});
  auto k = norm_call(ctx, *ids_.k_norm, from.k, to.k, {t.k_norm_rms, {}});
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
  if (rotates_ && !rotates_before_norm_) rotate(ctx, t.normed_qk, ops::Rotation::forward);
}

/// Turns d.q and d.k from the gradients of the norms' outputs into those of their inputs.
void Attention::normalize_backward(const BlockContext& ctx, const Slices& d) {
  const Tensors& t = tensors_;
  const UnshardGuard q_guard(ctx.weights, ids_.q_norm->module, Pass::backward);
  const UnshardGuard k_guard(ctx.weights, ids_.k_norm->module, Pass::backward);
  const auto x = slices(t.qkv);
  const auto norm = [&](const Tensor& input, const WeightModule& by, const Tensor& rms,
                        const Tensor& gradient) {
    return norm_backward_call(ctx, by, {.x = input, .dy = gradient, .dx = gradient}, {rms, {}},
                              Accumulate::no);
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

/// d_qkv = the gradients of queries, keys and values before the rotation, or as they are compared
/// if norms follow it; also the gradients of o_proj. The gather of the other ranks' keys and values
/// overlaps with o_proj's backward pass, as does the reduction of their gradients.
void Attention::attend_backward(const BlockContext& ctx, const WholeAndMine& dy) {
  const Tensors& t = tensors_;
  const auto s = attended(), d = slices(t.d_qkv);
  const UnshardGuard guard(ctx.weights, ids_.o_proj.module, Pass::backward);
  LinearBackward o_proj(ctx, {without_bias(ids_.o_proj)});
  const auto input = [&] { o_proj.input(t.d_out, dy.whole); };
  if (recomputed_) input();
  const auto all = recomputed_ ? *recomputed_ : ctx.context.gather({s.k, s.v}, input);
  recomputed_.reset();
  if (sinks_) {
    const auto [dsinks, accumulate] = ctx.weights.gradient(*sinks_);
    if (dsinks)
      ops::attention_sinks_backward(ctx.stream, sinks(ctx),
                                    {.dout = t.d_out, .dsinks = dsinks, .accumulate = accumulate});
  }
  const auto d_all = ctx.context.gradients({d.k, d.v});
  const bool unrotates = rotates_ && !rotates_before_norm_;
  const bool fuses_rotation = unrotates && ctx.context.size() == 1 && ctx.rope[index_].same();
  ops::attention_backward(ctx.stream, call(ctx, all),
                          {.dout = t.d_out,
                           .dq = d.q,
                           .dk = d_all.keys,
                           .dv = d_all.values,
                           .delta = t.d_softmax,
                           .cos_sin = fuses_rotation ? ctx.rope[index_].keys : Tensor()});
  ctx.context.reduce({d.k, d.v}, [&] { o_proj.weights(dy.whole, t.out); });
  if (unrotates && !fuses_rotation)
    rotate(ctx, t.d_qkv.slice_cols(0, d.q.cols() + d.k.cols()), ops::Rotation::backward);
  if (ids_.o_proj.bias) bias_backward(ctx, *ids_.o_proj.bias, dy.mine);
}

void Attention::backward(const BlockContext& ctx, Tensor x, Tensor dy) {
  const UnshardGuard guard(ctx.weights, ids_.attention, Pass::backward);
  const Tensor dy_whole = gathered(ctx.stream, ctx.tensor, dy);
  const auto x_whole = ctx.tensor.gather(x);
  attend_backward(ctx, {dy_whole, dy});
  const auto d = slices(tensors_.d_qkv);
  if (ids_.q_norm) normalize_backward(ctx, d);
  if (rotates_before_norm_)
    rotate(ctx, tensors_.d_qkv.slice_cols(0, d.q.cols() + d.k.cols()), ops::Rotation::backward);
  if (latent_) return latent_->backward(ctx, x_whole, {d.q, d.k, d.v});
  gathered_linear_backward(ctx, {{{*ids_.q_proj, *ids_.k_proj, *ids_.v_proj}, tensors_.d_qkv}},
                           x_whole);
}

}  // namespace llamesh::model
