#include "model/layers/router.hpp"

#include <algorithm>
#include <span>

#include "model/layers/router_balance.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {

Router::Router(const ModelConfig& config, const ParameterTable& table, ModuleId moe,
               const LayerNames& names)
    : router_(table.weight_module(moe, names.router)),
      count_(config.num_experts),
      per_token_(config.num_experts_per_tok),
      index_(std::ranges::count_if(
          std::span(table.parameters).first(index(router_.weight)),
          [](const Parameter& p) { return p.role == Role::router && p.is_matrix(); })),
      has_z_loss_(config.router_z_loss_coef > 0) {
  auto& routing = tensors_.routing;
  routing.normalize = config.norm_topk_prob;
  routing.groups = config.n_group;
  routing.groups_taken = config.topk_group;
  routing.scale = static_cast<float>(config.routed_scaling_factor);
  for (const auto module : {moe, router_.module})
    for (const auto id : table[module].parameters)
      if (table[id].role == Role::selection_bias) selection_bias_ = id;
  if (selection_bias_) routing.score = ops::RouterScore::sigmoid;
}

void Router::plan_kept(ArenaAllocator& plan, std::int64_t tokens) {
  auto& routing = tensors_.routing;
  routing.probabilities = plan.take(DType::f32, {tokens, count_});
  routing.experts = plan.take(DType::i32, {tokens, per_token_});
  routing.weights = plan.take(DType::f32, {tokens, per_token_});
  if (has_z_loss_) routing.log_sum_exp = plan.take(DType::f32, {tokens});
}

void Router::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  Tensors& t = tensors_;
  const auto M = pass.tokens();
  t.logits = plan.take(DType::f32, {M, count_});
  if (!pass.has_backward()) return;
  t.dweights = plan.take(DType::f32, {M, per_token_});
  t.dlogits = plan.take(pass.dtype, {M, count_});
}

void Router::route(const BlockContext& ctx, Tensor x) {
  const UnshardGuard guard(ctx.weights, router_.module, ctx.pass);
  ops::linear(ctx.stream, tensors_.logits, x, ctx.weights.parameter(router_.weight),
              Accumulate::no);
  if (router_.bias)
    ops::add_bias(ctx.stream, tensors_.logits, ctx.weights.parameter(*router_.bias));
  ops::RouteCall call = tensors_.routing;
  call.logits = tensors_.logits;
  if (selection_bias_) call.bias = ctx.weights.parameter(*selection_bias_);
  ops::route(ctx.stream, call);
  if (ctx.balance && ctx.pass != Pass::recompute) ctx.balance->add(ctx.stream, index_, call);
}

void Router::backward(const BlockContext& ctx, Tensor x, Tensor dx) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, router_.module, Pass::backward);
  ops::RouteCall call = t.routing;
  call.logits = t.logits;
  ops::RouteGradients gradients{.dweights = t.dweights, .dlogits = t.dlogits};
  if (ctx.balance) {
    gradients.dprobabilities = ctx.balance->dprobabilities();
    gradients.z_factor = ctx.balance->z_factor();
  }
  ops::route_backward(ctx.stream, call, gradients);
  ops::linear_backward_input(ctx.stream, dx, t.dlogits, ctx.weights.parameter(router_.weight),
                             Accumulate::yes);
  if (selection_bias_) ctx.weights.no_gradient(*selection_bias_);
  const auto [dw, accumulate] = ctx.weights.gradient(router_.weight);
  if (dw) ops::linear_backward_weight(ctx.stream, dw, t.dlogits, x, accumulate);
  if (!router_.bias) return;
  const auto [db, accumulate_bias] = ctx.weights.gradient(*router_.bias);
  if (db) ops::column_sums(ctx.stream, db, t.dlogits, accumulate_bias);
}

}  // namespace llamesh::model
