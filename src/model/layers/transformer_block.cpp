#include "model/layers/transformer_block.hpp"

#include "model/layers/norm.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {

using enum ActivationCheckpointing;

ResidualBranch::ResidualBranch(const ParameterTable& table, ModuleId layer,
                               std::string_view norm_before, std::string_view norm_after) {
  if (!norm_before.empty()) before_ = table.weight_module(layer, norm_before);
  if (!norm_after.empty()) after_ = table.weight_module(layer, norm_after);
}

void ResidualBranch::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                               ActivationCheckpointing checkpointing, bool keeps_stream) {
  const auto [rows, hidden] = pass.residual;
  Tensors& t = tensors_;
  if (keeps_stream || checkpointing != full) t.stream = plan.take(pass.dtype, {rows, hidden});
  if (!before_) t.input = t.stream;
  if (before_ && checkpointing != full) t.before = plan_statistics(plan, *before_, rows);
  if (before_ && checkpointing == none) t.input = plan.take(pass.dtype, {rows, hidden});
  if (!after_ || checkpointing == full) return;
  t.output = plan.take(pass.dtype, {rows, hidden});
  t.after = plan_statistics(plan, *after_, rows);
}

Tensor ResidualBranch::enter(const BlockContext& ctx, const Residual& in, NormReader reader) {
  const Tensors& t = tensors_;
  if (before_) {
    const UnshardGuard guard(ctx.weights, before_->module, ctx.pass);
    norm(ctx, *before_, in, t.stream, t.input, t.before, reader);
  } else if (in.delta) {
    ops::copy(ctx.stream, t.stream, in.x);
    ops::add(ctx.stream, t.stream, in.delta);
  }
  return t.input;
}

Residual ResidualBranch::leave(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  if (after_) {
    const UnshardGuard guard(ctx.weights, after_->module, ctx.pass);
    norm(ctx, *after_, {t.output, {}}, {}, ctx.delta, t.after);
  }
  if (ctx.traits.residual_scale != 1) ops::scale(ctx.stream, ctx.delta, ctx.traits.residual_scale);
  return {t.stream, ctx.delta};
}

Tensor ResidualBranch::leave_backward(const BlockContext& ctx) {
  Tensor dy = ctx.d_residual;
  if (const float scale = ctx.traits.residual_scale; scale != 1) {
    dy = ctx.delta;
    ops::copy(ctx.stream, dy, ctx.d_residual);
    ops::scale(ctx.stream, dy, scale);
  }
  if (!after_) return dy;
  const UnshardGuard guard(ctx.weights, after_->module, Pass::backward);
  norm_backward(ctx, *after_, {.x = tensors_.output, .dy = dy, .dx = ctx.delta}, tensors_.after,
                Accumulate::no);
  return ctx.delta;
}

void ResidualBranch::enter_backward(const BlockContext& ctx) {
  if (!before_) return ops::add(ctx.stream, ctx.d_residual, ctx.delta);
  const UnshardGuard guard(ctx.weights, before_->module, Pass::backward);
  norm_backward(ctx, *before_, {.x = tensors_.stream, .dy = ctx.delta, .dx = ctx.d_residual},
                tensors_.before, Accumulate::yes);
}

TransformerBlock::TransformerBlock(const ModelConfig& config, const ParameterTable& table,
                                   const LayerTraits& traits, std::size_t index)
    : layer_(table.layers[index]),
      parallel_(traits.parallel),
      attention_branch_(table, layer_, traits.names.norm_before_attention,
                        traits.names.norm_after_attention),
      attention_(config, table, layer_, traits, index),
      mlp_branch_(table, layer_, traits.names.norm_before_mlp, traits.names.norm_after_mlp),
      feed_forward_(make_feed_forward(config, table, layer_, traits)) {}

void TransformerBlock::plan(ArenaAllocator& plan, const PassShape& pass,
                            ActivationCheckpointing checkpointing, const Block* last,
                            const Block* alike) {
  checkpointing_ = checkpointing;
  if (last) {
    const auto& other = static_cast<const TransformerBlock&>(*last);
    attention_branch_.share(other.attention_branch_);
    attention_.share(other.attention_);
    mlp_branch_.share(other.mlp_branch_);
    beside_ = other.beside_;
  }
  if (!last || pass.has_backward()) {
    attention_branch_.plan_kept(plan, pass, checkpointing, /*keeps_stream=*/true);
    attention_.plan_kept(plan, pass, checkpointing);
    if (!parallel_) mlp_branch_.plan_kept(plan, pass, checkpointing, /*keeps_stream=*/false);
  }
  if (!last) attention_.plan_shared(plan, pass);
  if (!last && parallel_) beside_ = plan.take(pass.dtype, {pass.residual.rows, pass.residual.cols});
  plan_feed_forward(plan, pass, alike);
}

void TransformerBlock::plan_feed_forward(ArenaAllocator& plan, const PassShape& pass,
                                         const Block* alike) {
  if (!alike) {
    feed_forward_->plan_kept(plan, pass, none);
    feed_forward_->plan_shared(plan, pass);
    return;
  }
  feed_forward_->share(*static_cast<const TransformerBlock&>(*alike).feed_forward_);
  if (pass.has_backward()) feed_forward_->plan_kept(plan, pass, checkpointing_);
}

Residual TransformerBlock::forward(const BlockContext& ctx, const Residual& in) {
  const UnshardGuard guard(ctx.weights, layer_, ctx.pass);
  if (parallel_) return forward_parallel(ctx, in);
  attention_.forward(ctx, attention_branch_.enter(ctx, in, NormReader::linear),
                     attention_branch_.output(ctx));
  const auto middle = attention_branch_.leave(ctx);
  feed_forward_->forward(ctx, mlp_branch_.enter(ctx, middle, feed_forward_->reader()),
                         mlp_branch_.output(ctx));
  return mlp_branch_.leave(ctx);
}

Residual TransformerBlock::forward_parallel(const BlockContext& ctx, const Residual& in) {
  const Tensor x = attention_branch_.enter(ctx, in, NormReader::linear);
  attention_.forward(ctx, x, beside_);
  feed_forward_->forward(ctx, x, ctx.delta);
  ops::add(ctx.stream, ctx.delta, beside_);
  return attention_branch_.leave(ctx);
}

void TransformerBlock::backward(const BlockContext& ctx) {
  const UnshardGuard guard(ctx.weights, layer_, Pass::backward);
  recompute(ctx);
  if (parallel_) return backward_parallel(ctx);
  feed_forward_->backward(ctx, mlp_branch_.tensors().input, mlp_branch_.leave_backward(ctx));
  mlp_branch_.enter_backward(ctx);
  attention_.backward(ctx, attention_branch_.tensors().input,
                      attention_branch_.leave_backward(ctx));
  attention_branch_.enter_backward(ctx);
}

void TransformerBlock::backward_parallel(const BlockContext& ctx) {
  const Tensor x = attention_branch_.tensors().input;
  feed_forward_->backward(ctx, x, attention_branch_.leave_backward(ctx));
  ops::copy(ctx.stream, beside_, ctx.delta);
  attention_.backward(ctx, x, attention_branch_.leave_backward(ctx));
  ops::add(ctx.stream, ctx.delta, beside_);
  attention_branch_.enter_backward(ctx);
}

/// Recomputes what was not kept, except what the MLP's backward pass provides. The weights stay
/// gathered from here to their use in the backward pass.
void TransformerBlock::recompute(const BlockContext& backward) {
  if (checkpointing_ == none) return;
  BlockContext ctx = backward;
  ctx.pass = Pass::recompute;
  const bool multiplies = checkpointing_ == full;
  const Tensor x = attention_branch_.enter(ctx, {attention_branch_.tensors().stream, {}},
                                           multiplies ? NormReader::linear : NormReader::other);
  if (parallel_) return recompute_parallel(ctx, x);
  Residual middle{mlp_branch_.tensors().stream, {}};
  if (multiplies) {
    attention_.forward(ctx, x, attention_branch_.output(ctx));
    middle = attention_branch_.leave(ctx);
  } else {
    attention_.recompute_normed(ctx);
  }
  const Tensor mlp_input =
      mlp_branch_.enter(ctx, middle, multiplies ? feed_forward_->reader() : NormReader::other);
  if (!multiplies) return;
  if (!mlp_branch_.has_norm_after()) return feed_forward_->recompute(ctx, mlp_input);
  feed_forward_->forward(ctx, mlp_input, mlp_branch_.output(ctx));
  mlp_branch_.leave(ctx);
}

void TransformerBlock::recompute_parallel(const BlockContext& ctx, const Tensor& x) {
  if (checkpointing_ != full) return attention_.recompute_normed(ctx);
  attention_.forward(ctx, x, {});
  feed_forward_->recompute(ctx, x);
}

}  // namespace llamesh::model
