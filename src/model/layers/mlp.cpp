#include "model/layers/mlp.hpp"

#include "model/layers/linear.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {

Mlp::Mlp(const ParameterTable& table, ModuleId layer, const LayerTraits& traits)
    : activation_(traits.activation) {
  const auto& names = traits.names;
  const auto mlp = table.child(layer, names.mlp);
  ids_ = {.mlp = mlp,
          .gate_proj = {},
          .up_proj = table.weight_module(mlp, names.up_proj),
          .down_proj = table.weight_module(mlp, names.down_proj)};
  if (ops::inputs_of(activation_) == 2) ids_.gate_proj = table.weight_module(mlp, names.gate_proj);
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
  ops::activate(ctx.stream, t.activated, t.up, activation_);
  linear_and_reduce(ctx, ids_.down_proj, y, t.activated);
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
  // Turns `up` into its gradient, and recomputes `activated` if it was not kept.
  const auto activate_backward = [&] {
    ops::activate_backward(ctx.stream, t.up, keeps_activated_ ? Tensor() : t.activated,
                           t.d_activated, t.up, activation_);
  };
  reduced_linear_backward(ctx, ids_.down_proj, t.d_activated, {dy_whole, dy}, t.activated,
                          activate_backward);
  gathered_linear_backward(ctx, inputs(), t.up, x_whole);
}

}  // namespace llamesh::model
