#include "model/layers/experts.hpp"

#include <algorithm>

#include "model/layers/linear.hpp"
#include "model/layers/mlp.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

std::shared_ptr<GrowingMemory> new_memory() {
  return std::make_shared<GrowingMemory>(device::MemoryUse::activations);
}

}  // namespace

std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config,
                                               const ParameterTable& table, ModuleId layer,
                                               const LayerTraits& traits) {
  const auto& names = traits.names;
  const auto mlp = table.child(layer, names.mlp);
  if (names.router.empty() || !table.find_child(mlp, names.router))
    return std::make_unique<Mlp>(table, mlp, traits);
  return std::make_unique<Experts>(config, table, layer, traits);
}

Experts::Experts(const ModelConfig& config, const ParameterTable& table, ModuleId layer,
                 const LayerTraits& traits)
    : moe_(table.child(layer, traits.names.mlp)),
      experts_(table.child(moe_, traits.names.experts)),
      router_(config, table, moe_, traits.names),
      gate_proj_(table[experts_].parameters[0]),
      up_proj_(table[experts_].parameters[1]),
      down_proj_(table[experts_].parameters[2]),
      activation_(traits.activation),
      intermediate_(table[gate_proj_].shape[1]),
      hidden_(config.hidden_size) {
  if (const auto& ids = table[experts_].parameters; ids.size() > 3)
    biases_ = {.gate_proj = ids[3], .up_proj = ids[4], .down_proj = ids[5]};
  if (const auto name = traits.names.shared_expert; !name.empty() && table.find_child(moe_, name))
    shared_.emplace(table, moe_, traits);
}

void Experts::share(const FeedForward& layer) {
  const auto& other = dynamic_cast<const Experts&>(layer);
  if (shared_) shared_->share(*other.shared_);
  router_.share(other.router_);
  tensors_ = other.tensors_;
  rows_ = other.rows_;
  memory_ = other.memory_;
  dtype_ = other.dtype_;
  exchanges_ = other.exchanges_;
  has_backward_ = other.has_backward_;
  has_fp8_ = other.has_fp8_;
}

void Experts::plan_kept(ArenaAllocator& plan, const PassShape& pass,
                        ActivationCheckpointing checkpointing) {
  keeps_activated_ = checkpointing == ActivationCheckpointing::none;
  exchanges_ = pass.expert_ranks > 1;
  dtype_ = pass.dtype;
  if (shared_) shared_->plan_kept(plan, pass, checkpointing);
  if (checkpointing == ActivationCheckpointing::full) return;
  const auto rows = pass.tokens() * router_.experts_per_token();
  router_.plan_kept(plan, pass.tokens());
  rows_ = std::make_shared<ExpertRows>();
  rows_->order.starts = plan.take(DType::i32, {router_.experts() + 1});
  rows_->order.slots = plan.take(DType::i32, {rows});
  rows_->order.places = plan.take(DType::i32, {rows});
  if (exchanges_) {
    memory_.kept = new_memory();
    if (keeps_activated_) memory_.activated = new_memory();
  } else {
    take_kept(plan, rows);
    if (keeps_activated_) take_activated(plan, rows);
  }
}

void Experts::plan_shared(ArenaAllocator& plan, const PassShape& pass) {
  has_backward_ = pass.has_backward();
  has_fp8_ = pass.has_fp8();
  if (shared_) shared_->plan_shared(plan, pass);
  router_.plan_shared(plan, pass);
  if (exchanges_)
    memory_.shared = new_memory();
  else
    take_shared(plan, pass.tokens() * router_.experts_per_token());
}

void Experts::take_kept(ArenaAllocator& plan, std::int64_t rows) {
  if (exchanges_) tensors_.inputs = plan.take(dtype_, {rows, hidden_});
  tensors_.up = plan.take(dtype_, {rows, 2 * intermediate_});
}

void Experts::take_activated(ArenaAllocator& plan, std::int64_t rows) {
  tensors_.activated = plan.take(dtype_, {rows, intermediate_});
}

void Experts::take_shared(ArenaAllocator& plan, std::int64_t rows) {
  tensors_.rows = plan.take(dtype_, {rows, hidden_});
  if (has_fp8_)
    tensors_.fp8 = {.values = plan.take(DType::e4m3, {rows * std::max(hidden_, intermediate_)}),
                    .scales = plan.take(DType::f32, {rows})};
  if (!has_backward_) return;
  tensors_.d_activated = plan.take(dtype_, {rows, intermediate_});
  tensors_.weights = plan.take(DType::f32, {rows, 1});
  tensors_.dweights = plan.take(DType::f32, {rows, 1});
}

/// Places the tensors that the backward pass reads, if ranks exchange rows.
void Experts::place_kept() {
  if (!exchanges_) return;
  memory_.kept->place([&](ArenaAllocator& plan) { take_kept(plan, rows_->count); });
  if (keeps_activated_)
    memory_.activated->place([&](ArenaAllocator& plan) { take_activated(plan, rows_->count); });
}

/// Places the tensors that other layers may have moved since, if ranks exchange rows.
void Experts::place_shared() {
  if (!exchanges_) return;
  memory_.shared->place([&](ArenaAllocator& plan) { take_shared(plan, rows_->count); });
  if (!keeps_activated_)
    memory_.activated->place([&](ArenaAllocator& plan) { take_activated(plan, rows_->count); });
}

void Experts::route(const BlockContext& ctx, Tensor x) {
  router_.route(ctx, x);
  ops::sort_by_expert(ctx.stream, rows_->order, router_.tensors().routing.experts);
  ctx.experts.exchange_counts(*rows_);
  place_kept();
  place_shared();
}

ops::Fp8Matrix Experts::fp8_room(const Tensor& rows) const {
  const auto& room = tensors_.fp8;
  return {.values = room.values.slice(0, rows.numel()).reshape({rows.rows(), rows.cols()}),
          .scales = room.scales.slice(0, rows.rows())};
}

ops::Fp8Matrix Experts::in_fp8(const BlockContext& ctx, const Tensor& rows) const {
  const auto q = fp8_room(rows);
  ops::quantize_rows(ctx.stream, q, rows);
  return q;
}

/// y = x times each row's expert.
void Experts::multiply(const BlockContext& ctx, const Tensor& y, const Tensor& x,
                       ParameterId weight) const {
  const StoredWeight w(ctx.weights, weight);
  if (has_fp8_)
    ops::grouped_linear_fp8(ctx.stream, y, in_fp8(ctx, x), ctx.fp8->weight(ctx.stream, w),
                            rows_->starts, Accumulate::no);
  else
    ops::grouped_linear(ctx.stream, y, x, w.values, rows_->starts, Accumulate::no);
}

/// dx = or += the gradient of multiply()'s x.
void Experts::multiply_backward_input(const BlockContext& ctx, const Tensor& dx, const Tensor& dy,
                                      ParameterId weight, Accumulate accumulate) const {
  const StoredWeight w(ctx.weights, weight);
  if (has_fp8_)
    ops::grouped_linear_fp8(ctx.stream, dx, in_fp8(ctx, dy),
                            ctx.fp8->transposed_weight(ctx.stream, w), rows_->starts, accumulate);
  else
    ops::grouped_linear_backward_input(ctx.stream, dx, dy, w.values, rows_->starts, accumulate);
}

/// Computes `up` from the tokens. The caller has entered the experts.
void Experts::gate_and_up(const BlockContext& ctx, Tensor x) {
  const Tensors& t = tensors_;
  const Tensor inputs = exchanges_ ? t.inputs : t.rows;
  ctx.experts.dispatch(*rows_, inputs, x);
  const auto project = [&](ParameterId weight, std::int64_t column,
                           std::optional<ParameterId> bias) {
    const Tensor out = t.up.slice_cols(column, intermediate_);
    multiply(ctx, out, inputs, weight);
    if (bias) ops::grouped_bias(ctx.stream, out, ctx.weights.parameter(*bias), rows_->starts);
  };
  project(gate_proj_, 0, biases_ ? std::optional(biases_->gate_proj) : std::nullopt);
  project(up_proj_, intermediate_, biases_ ? std::optional(biases_->up_proj) : std::nullopt);
}

/// Computes `rows` from `up`.
void Experts::activate_and_multiply(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  if (!has_fp8_) {
    ops::activate(ctx.stream, t.activated, t.up, activation_);
    return multiply(ctx, t.rows, t.activated, down_proj_);
  }
  const auto activated = fp8_room(t.activated);
  ops::activate_and_quantize(ctx.stream, t.activated, activated, t.up, activation_);
  ops::grouped_linear_fp8(ctx.stream, t.rows, activated,
                          ctx.fp8->weight(ctx.stream, {ctx.weights, down_proj_}), rows_->starts,
                          Accumulate::no);
}

void Experts::forward(const BlockContext& ctx, Tensor x, Tensor y) {
  const Tensors& t = tensors_;
  const UnshardGuard guard(ctx.weights, moe_, ctx.pass);
  const Tensor tokens = gathered(ctx.stream, ctx.tensor, x), outputs = ctx.tensor.partial(y);
  if (shared_) shared_->forward(ctx, tokens, outputs);
  route(ctx, tokens);
  const UnshardGuard experts(ctx.weights, experts_, ctx.pass);
  gate_and_up(ctx, tokens);
  activate_and_multiply(ctx);
  if (biases_ && ctx.tensor.rank() == 0)
    ops::grouped_bias(ctx.stream, t.rows, ctx.weights.parameter(biases_->down_proj), rows_->starts);
  ops::combine_tokens(ctx.stream, outputs, ctx.experts.collect(*rows_, t.rows),
                      router_.tensors().routing.weights, rows_->order.places, to_shared());
  ctx.stream.wait(ctx.tensor.reduce(y));
}

void Experts::recompute(const BlockContext& ctx, Tensor x) {
  const UnshardGuard guard(ctx.weights, moe_, ctx.pass);
  const Tensor tokens = gathered(ctx.stream, ctx.tensor, x);
  if (shared_) shared_->recompute(ctx, tokens);
  route(ctx, tokens);
  const UnshardGuard experts(ctx.weights, experts_, ctx.pass);
  gate_and_up(ctx, tokens);
}

/// Turns `up` into its gradient and computes those of the routing weights and of `down`.
void Experts::down_backward(const BlockContext& ctx, Tensor dy) {
  const Tensors& t = tensors_;
  const auto by_slot = [](const Tensor& weights) { return weights.reshape({weights.numel(), 1}); };
  ctx.experts.dispatch(*rows_, t.rows, dy);
  ctx.experts.dispatch(*rows_, t.weights, by_slot(router_.tensors().routing.weights));
  multiply_backward_input(ctx, t.d_activated, t.rows, down_proj_, Accumulate::no);
  const Tensor again = keeps_activated_ ? Tensor() : t.activated;
  ops::activate_backward(ctx.stream, t.up, again, t.d_activated, t.up, activation_);
  ops::weigh_rows_backward(ctx.stream, {.weights = t.weights,
                                        .dweights = t.dweights,
                                        .activated = t.activated,
                                        .d_activated = t.d_activated,
                                        .d_up = t.up});
  const auto [d_down, accumulate] = ctx.weights.gradient(down_proj_);
  if (d_down)
    ops::grouped_linear_backward_weight(ctx.stream, d_down, t.rows, t.activated, rows_->starts,
                                        accumulate);
  if (biases_) down_bias_backward(ctx);
  ops::combine_tokens(ctx.stream, by_slot(router_.tensors().dweights),
                      ctx.experts.collect(*rows_, t.dweights), {}, rows_->order.places,
                      Accumulate::no);
}

/// Computes the gradient of `down`'s bias, and adds what it contributes to the routing weights'.
void Experts::down_bias_backward(const BlockContext& ctx) {
  const Tensors& t = tensors_;
  const auto bias = biases_->down_proj;
  if (ctx.tensor.rank() > 0) return ctx.weights.no_gradient(bias);
  const auto [db, accumulate] = ctx.weights.gradient(bias);
  ops::grouped_bias_backward(ctx.stream, {.dy = t.rows,
                                          .starts = rows_->starts,
                                          .weights = t.weights,
                                          .db = db,
                                          .accumulate = accumulate,
                                          .b = ctx.weights.parameter(bias),
                                          .dweights = t.dweights});
}

/// dx (M, D) = or += x's gradient through the experts.
void Experts::gate_and_up_backward(const BlockContext& ctx, Tensor x, Tensor dx) {
  const Tensors& t = tensors_;
  const Tensor d_gate = t.up.slice_cols(0, intermediate_);
  const Tensor d_up = t.up.slice_cols(intermediate_, intermediate_);
  const Tensor inputs = exchanges_ ? t.inputs : t.rows;
  if (!exchanges_) ctx.experts.dispatch(*rows_, inputs, x);
  const auto backward_weight = [&](ParameterId id, const Tensor& d) {
    const auto [dw, accumulate] = ctx.weights.gradient(id);
    if (dw)
      ops::grouped_linear_backward_weight(ctx.stream, dw, d, inputs, rows_->starts, accumulate);
  };
  const auto backward_bias = [&](ParameterId id, const Tensor& d) {
    const auto [db, accumulate] = ctx.weights.gradient(id);
    if (db)
      ops::grouped_bias_backward(
          ctx.stream, {.dy = d, .starts = rows_->starts, .db = db, .accumulate = accumulate});
  };
  backward_weight(gate_proj_, d_gate);
  backward_weight(up_proj_, d_up);
  if (biases_) {
    backward_bias(biases_->gate_proj, d_gate);
    backward_bias(biases_->up_proj, d_up);
  }
  multiply_backward_input(ctx, t.rows, d_gate, gate_proj_, Accumulate::no);
  multiply_backward_input(ctx, t.rows, d_up, up_proj_, Accumulate::yes);
  ops::combine_tokens(ctx.stream, dx, ctx.experts.collect(*rows_, t.rows), {}, rows_->order.places,
                      to_shared());
}

void Experts::backward(const BlockContext& ctx, Tensor x, Tensor dy) {
  const UnshardGuard guard(ctx.weights, moe_, Pass::backward);
  place_shared();
  const Tensor d_outputs = gathered(ctx.stream, ctx.tensor, dy);
  const Tensor tokens = gathered(ctx.stream, ctx.tensor, x);
  Tensor d_tokens;
  {
    const UnshardGuard experts(ctx.weights, experts_, Pass::backward);
    down_backward(ctx, d_outputs);
    d_tokens = ctx.tensor.partial(ctx.delta);
    // d_tokens may alias d_outputs, which only the shared expert still reads.
    if (shared_) shared_->backward(ctx, tokens, d_outputs, d_tokens);
    gate_and_up_backward(ctx, tokens, d_tokens);
  }
  router_.backward(ctx, tokens, d_tokens);
  ctx.stream.wait(ctx.tensor.reduce(ctx.delta));
}

}  // namespace llamesh::model
