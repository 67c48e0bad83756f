#include "model/layers/mlp.hpp"

#include "model/layers/linear.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {

Mlp::Mlp(const ParameterTable& table, ModuleId mlp, const LayerTraits& traits)
    : activation_(traits.activation) {
  const auto& names = traits.names;
  ids_ = {.mlp = mlp,
          .gate_proj = {},
          .up_proj = table.weight_module(mlp, names.up_proj),
          .down_proj = table.weight_module(mlp, names.down_proj),
          .act_fn = {}};
  if (ops::inputs_of(activation_) == 2) ids_.gate_proj = table.weight_module(mlp, names.gate_proj);
  if (activation_ == ops::Activation::xielu) {
    ids_.act_fn = table.child(mlp, names.act_fn);
    ids_.alpha_p = table[*ids_.act_fn].parameters[0];
    ids_.alpha_n = table[*ids_.act_fn].parameters[1];
  }
  intermediate_ = table[ids_.down_proj.weight].shape[1];
}

void Mlp::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                    ActivationCheckpointing checkpointing) {
  const auto M = pass.tokens();
  if (checkpointing != ActivationCheckpointing::full)
    tensors_.up = plan.take(pass.dtype, {M, ops::inputs_of(activation_) * intermediate_});
  keeps_activated_ = checkpointing == ActivationCheckpointing::none;
  if (keeps_activated_) tensors_.activated = plan.take(pass.dtype, {M, intermediate_});
}

void Mlp::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  if (!pass.has_backward()) return;
  tensors_.d_activated = plan.take(pass.dtype, {pass.tokens(), intermediate_});
}

/// Returns the layers that read x.
std::vector<WeightModule> Mlp::inputs() const {
  if (ids_.gate_proj) return {*ids_.gate_proj, ids_.up_proj};
  return {ids_.up_proj};
}

void Mlp::forward(const BlockContext& ctx, Tensor x, Tensor y) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, ids_.mlp, ctx.pass);
  linear(ctx, inputs(), t.up, gathered(ctx.stream, ctx.tensor, x));
  activate(ctx);
  linear_and_reduce(ctx, ids_.down_proj, y, t.activated);
}

void Mlp::forward_part(const BlockContext& ctx, Tensor x, Tensor y) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, ids_.mlp, ctx.pass);
  linear(ctx, inputs(), t.up, x);
  activate(ctx);
  linear(ctx, {ids_.down_proj}, y, t.activated);
}

void Mlp::recompute_part(const BlockContext& ctx, Tensor x) {
  const UnshardGuard guard(ctx.weights, ids_.mlp, ctx.pass);
  linear(ctx, inputs(), tensors_.up, x);
}

/// Without its output. The caller has entered act_fn.
ops::XieluCall Mlp::xielu_call(const BlockContext& ctx) const {
  return {.out = {},
          .x = tensors_.up,
          .alpha_p = ctx.weights.parameter(ids_.alpha_p),
          .alpha_n = ctx.weights.parameter(ids_.alpha_n)};
}

void Mlp::activate(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  if (!ids_.act_fn && ctx.fp8)
    return ops::activate_and_quantize(ctx.stream, t.activated, ctx.fp8->left_as_input(t.activated),
                                      t.up, activation_);
  if (!ids_.act_fn) return ops::activate(ctx.stream, t.activated, t.up, activation_);
  const UnshardGuard guard(ctx.weights, *ids_.act_fn, ctx.pass);
  auto call = xielu_call(ctx);
  call.out = t.activated;
  ops::xielu(ctx.stream, call);
}

/// Turns `up` into its gradient, and recomputes `activated` if it was not kept.
void Mlp::activate_backward(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  const Tensor again = keeps_activated_ ? Tensor() : t.activated;
  if (!ids_.act_fn)
    return ops::activate_backward(ctx.stream, t.up, again, t.d_activated, t.up, activation_);
  const UnshardGuard guard(ctx.weights, *ids_.act_fn, Pass::backward);
  auto call = xielu_call(ctx);
  call.out = again;
  const auto [d_alpha_p, accumulate_p] = ctx.weights.gradient(ids_.alpha_p);
  const auto [d_alpha_n, accumulate_n] = ctx.weights.gradient(ids_.alpha_n);
  ops::xielu_backward(ctx.stream, call,
                      {.dout = t.d_activated,
                       .dx = t.up,
                       .d_alpha_p = d_alpha_p,
                       .d_alpha_n = d_alpha_n,
                       .accumulate_p = accumulate_p,
                       .accumulate_n = accumulate_n});
}

void Mlp::recompute(const BlockContext& ctx, Tensor x) {
  const UnshardGuard guard(ctx.weights, ids_.mlp, ctx.pass);
  linear(ctx, inputs(), tensors_.up, gathered(ctx.stream, ctx.tensor, x));
}

void Mlp::backward(const BlockContext& ctx, Tensor x, Tensor dy) {
  const UnshardGuard guard(ctx.weights, ids_.mlp, Pass::backward);
  const Tensors& t = tensors_;
  const Tensor dy_whole = gathered(ctx.stream, ctx.tensor, dy);
  const auto x_whole = ctx.tensor.gather(x);
  reduced_linear_backward(ctx, ids_.down_proj, t.d_activated, {dy_whole, dy}, t.activated,
                          [&] { activate_backward(ctx); });
  gathered_linear_backward(ctx, {{inputs(), t.up}}, x_whole);
}

}  // namespace llamesh::model
