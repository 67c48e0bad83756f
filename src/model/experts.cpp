#include "model/experts.hpp"

#include "model/layers.hpp"
#include "model/mlp.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {

std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config,
                                               const ParameterTable& table, ModuleId layer,
                                               const LayerNames& names) {
  const auto mlp = table.child(layer, names.mlp);
  if (names.router.empty() || !table.find_child(mlp, names.router))
    return std::make_unique<Mlp>(table, layer, names);
  return std::make_unique<Experts>(config, table, layer, names);
}

Experts::Experts(const ModelConfig& config, const ParameterTable& table, ModuleId layer,
                 const LayerNames& names)
    : moe_(table.child(layer, names.mlp)),
      experts_(table.child(moe_, names.experts)),
      router_(config, table, moe_, names.router),
      gate_proj_(table[experts_].parameters[0]),
      up_proj_(table[experts_].parameters[1]),
      down_proj_(table[experts_].parameters[2]),
      intermediate_(table[gate_proj_].shape[1]),
      hidden_(config.hidden_size) {}

void Experts::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                        ActivationCheckpointing checkpointing) {
  keeps_activated_ = checkpointing == ActivationCheckpointing::none;
  if (checkpointing == ActivationCheckpointing::full) return;
  Tensors& t = tensors_;
  const auto rows = pass.tokens() * router_.experts_per_token();
  router_.plan_kept(plan, pass.tokens());
  t.order.starts = plan.take(DType::i32, {router_.experts() + 1});
  t.order.slots = plan.take(DType::i32, {rows});
  t.order.places = plan.take(DType::i32, {rows});
  t.up = plan.take(pass.dtype, {rows, 2 * intermediate_});
  if (keeps_activated_) t.activated = plan.take(pass.dtype, {rows, intermediate_});
}

void Experts::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  Tensors& t = tensors_;
  const auto rows = pass.tokens() * router_.experts_per_token();
  router_.plan_shared(plan, pass);
  t.rows = plan.take(pass.dtype, {rows, hidden_});
  if (pass.has_backward()) t.d_activated = plan.take(pass.dtype, {rows, intermediate_});
}

void Experts::route(const BlockContext& ctx, Tensor x) {
  router_.route(ctx, x);
  ops::sort_by_expert(ctx.stream, tensors_.order, router_.tensors().routing.experts);
}

/// Computes `up` from the tokens. The caller has entered the experts.
void Experts::gate_and_up(const BlockContext& ctx, Tensor x) {
  const Tensors& t = tensors_;
  ops::dispatch_tokens(ctx.stream, t.rows, x, t.order.slots);
  std::int64_t column = 0;
  for (const auto id : {gate_proj_, up_proj_}) {
    ops::grouped_linear(ctx.stream, t.up.slice_cols(column, intermediate_), t.rows,
                        ctx.weights.parameter(id), t.order.starts, Accumulate::no);
    column += intermediate_;
  }
}

void Experts::forward(const BlockContext& ctx, Tensor x, Tensor y) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, moe_, ctx.pass);
  route(ctx, x);
  const UnshardGuard experts(ctx.weights, experts_, ctx.pass);
  gate_and_up(ctx, x);
  ops::swiglu(ctx.stream, t.activated, t.up);
  ops::grouped_linear(ctx.stream, t.rows, t.activated, ctx.weights.parameter(down_proj_),
                      t.order.starts, Accumulate::no);
  ops::combine_tokens(ctx.stream, y, t.rows, router_.tensors().routing.weights, t.order.places,
                      Accumulate::no);
}

void Experts::recompute(const BlockContext& ctx, Tensor x) {
  const UnshardGuard guard(ctx.weights, moe_, ctx.pass);
  route(ctx, x);
  const UnshardGuard experts(ctx.weights, experts_, ctx.pass);
  gate_and_up(ctx, x);
}

/// Turns `up` into its gradient and computes those of the routing weights and of `down`.
void Experts::down_backward(const BlockContext& ctx, Tensor dy) {
  const Tensors& t = tensors_;
  ops::dispatch_tokens(ctx.stream, t.rows, dy, t.order.slots);
  ops::grouped_linear_backward_input(ctx.stream, t.d_activated, t.rows,
                                     ctx.weights.parameter(down_proj_), t.order.starts,
                                     Accumulate::no);
  const Tensor again = keeps_activated_ ? Tensor() : t.activated;
  ops::swiglu_backward(ctx.stream, t.up, again, t.d_activated, t.up);
  ops::weigh_rows_backward(ctx.stream, {.weights = router_.tensors().routing.weights,
                                        .slots = t.order.slots,
                                        .dweights = router_.tensors().dweights,
                                        .activated = t.activated,
                                        .d_activated = t.d_activated,
                                        .d_up = t.up});
  const auto [d_down, accumulate] = ctx.weights.gradient(down_proj_);
  ops::grouped_linear_backward_weight(ctx.stream, d_down, t.rows, t.activated, t.order.starts,
                                      accumulate);
}

/// ctx.delta = x's gradient by way of the experts.
void Experts::gate_and_up_backward(const BlockContext& ctx, Tensor x) {
  const Tensors& t = tensors_;
  const Tensor d_gate = t.up.slice_cols(0, intermediate_);
  const Tensor d_up = t.up.slice_cols(intermediate_, intermediate_);
  const auto backward_weight = [&](ParameterId id, const Tensor& d) {
    const auto [dw, accumulate] = ctx.weights.gradient(id);
    ops::grouped_linear_backward_weight(ctx.stream, dw, d, t.rows, t.order.starts, accumulate);
  };
  ops::dispatch_tokens(ctx.stream, t.rows, x, t.order.slots);
  backward_weight(gate_proj_, d_gate);
  backward_weight(up_proj_, d_up);
  ops::grouped_linear_backward_input(ctx.stream, t.rows, d_gate, ctx.weights.parameter(gate_proj_),
                                     t.order.starts, Accumulate::no);
  ops::grouped_linear_backward_input(ctx.stream, t.rows, d_up, ctx.weights.parameter(up_proj_),
                                     t.order.starts, Accumulate::yes);
  ops::combine_tokens(ctx.stream, ctx.delta, t.rows, {}, t.order.places, Accumulate::no);
}

void Experts::backward(const BlockContext& ctx, Tensor x, Tensor dy) {
  const UnshardGuard guard(ctx.weights, moe_, Pass::backward);
  {
    const UnshardGuard experts(ctx.weights, experts_, Pass::backward);
    down_backward(ctx, dy);
    gate_and_up_backward(ctx, x);
  }
  router_.backward(ctx, x, ctx.delta);
}

}  // namespace llamesh::model
