#include "model/layers/shared_expert.hpp"

#include "ops/ops.hpp"

namespace llamesh::model {

SharedExpert::SharedExpert(const ParameterTable& table, ModuleId moe, const LayerTraits& traits)
    : mlp_(table, table.child(moe, traits.names.shared_expert), traits) {
  if (const auto name = traits.names.shared_expert_gate; !name.empty())
    gate_ = table.weight_module(moe, name);
}

void SharedExpert::share(const SharedExpert& other) {
  mlp_.share(other.mlp_);
  tensors_ = other.tensors_;
}

void SharedExpert::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                             ActivationCheckpointing checkpointing) {
  mlp_.plan_kept(plan, pass, checkpointing);
  if (gate_ && checkpointing != ActivationCheckpointing::full)
    tensors_.gates = plan.take(DType::f32, {pass.tokens(), 1});
}

void SharedExpert::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  mlp_.plan_shared(plan, pass);
  if (!gate_ || !pass.has_backward()) return;
  tensors_.dgates = plan.take(DType::f32, {pass.tokens(), 1});
  tensors_.dlogits = plan.take(pass.dtype, {pass.tokens(), 1});
}

/// Scales y, if it is given.
void SharedExpert::compute_gates(const BlockContext& ctx, Tensor x, Tensor y) {
  if (!gate_) return;
  const UnshardGuard guard(ctx.weights, gate_->module, ctx.pass);
  ops::linear(ctx.stream, tensors_.gates, x, ctx.weights.parameter(gate_->weight), Accumulate::no);
  ops::gate_rows(ctx.stream, y, tensors_.gates);
}

void SharedExpert::forward(const BlockContext& ctx, Tensor x, Tensor y) {
  mlp_.forward_part(ctx, x, y);
  compute_gates(ctx, x, y);
}

void SharedExpert::recompute(const BlockContext& ctx, Tensor x) {
  mlp_.recompute_part(ctx, x);
  compute_gates(ctx, x, {});
}

void SharedExpert::backward(const BlockContext& ctx, Tensor x, Tensor dy, Tensor dx) {
  const Tensors& t = tensors_;
  const auto& of_mlp = mlp_.tensors();
  mlp_.backward_part(ctx, x, dy, dx, [&] {
    if (gate_)
      ops::weigh_rows_backward(ctx.stream, {.weights = t.gates,
                                            .dweights = t.dgates,
                                            .activated = of_mlp.activated,
                                            .d_activated = of_mlp.d_activated,
                                            .d_up = of_mlp.up});
  });
  if (!gate_) return;
  const UnshardGuard guard(ctx.weights, gate_->module, Pass::backward);
  ops::gate_rows_backward(ctx.stream, t.dlogits, t.dgates, t.gates);
  ops::linear_backward_input(ctx.stream, dx, t.dlogits, ctx.weights.parameter(gate_->weight),
                             Accumulate::yes);
  const auto [dw, accumulate] = ctx.weights.gradient(gate_->weight);
  if (dw) ops::linear_backward_weight(ctx.stream, dw, t.dlogits, x, accumulate);
}

}  // namespace llamesh::model
