#include "optim/outer_optimizer.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/async_copy.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::optim {

using sharding::ReduceDType;

std::vector<sharding::Moment> outer_tensors_of(const OuterOptions& options) {
  if (!options.enabled()) return {};
  std::vector<sharding::Moment> tensors{{"outer_weights"}};
  if (options.name == OuterName::nesterov) tensors.push_back({"outer_momentum"});
  if (options.delay_steps > 0) tensors.push_back({.name = "outer_difference", .exchanged = true});
  return tensors;
}

namespace {

/// Checks that no key is set without effect.
void check_unused(const OuterOptions& options) {
  const char* set = options.reduce_dtype != ReduceDType::automatic ? "reduce_dtype"
                    : options.error_feedback                       ? "error_feedback"
                    : options.fragments > 1                        ? "fragments"
                    : options.delay_steps > 0                      ? "delay_steps"
                                                                   : nullptr;
  validate(set == nullptr,
           "optimizer.outer.{} is set, but optimizer.outer.every_steps is 0, so replicas train "
           "together; set both, or leave both out",
           set == nullptr ? "" : set);
}

/// Checks what needs the state on the device, and that there are errors to feed back.
void check_device(const OuterOptions& options, sharding::Offload offload) {
  const bool on_device = offload == sharding::Offload::none;
  validate(
      options.delay_steps == 0 || on_device,
      "optimizer.outer.delay_steps is {}, but with sharding.offload the weights are not on the "
      "device between steps; set it to 0",
      options.delay_steps);
  validate(!options.error_feedback || options.reduce_dtype != ReduceDType::automatic,
           "optimizer.outer.error_feedback is true, but exchanges in fp32 leave nothing out; set "
           "optimizer.outer.reduce_dtype to int8 or int4");
  validate(
      !options.error_feedback || on_device,
      "optimizer.outer.error_feedback is true, but with sharding.offload the errors are not on "
      "the device; set it to false");
}

}  // namespace

void check(const OuterOptions& options, const sharding::ShardLayout& layout,
           sharding::Offload offload) {
  if (!options.enabled()) return check_unused(options);
  const auto& dims = layout.dims();
  validate(dims.group_size(dims.apart()) > 1,
           "optimizer.outer.every_steps is {}, but the mesh {} has one replica, which has nothing "
           "to exchange; leave optimizer.outer out, or use hybrid_shard or no_shard with several",
           options.every_steps, comm::to_string(dims));
  validate(options.fragments <= options.every_steps,
           "optimizer.outer.fragments is {}, but each is exchanged after another one of {} steps "
           "(optimizer.outer.every_steps); lower it",
           options.fragments, options.every_steps);
  const auto trained =
      std::ranges::count(layout.units(), false, &sharding::ShardLayout::PlacedUnit::frozen);
  validate(options.fragments <= trained,
           "optimizer.outer.fragments is {}, but the model has {} units to train; lower it",
           options.fragments, trained);
  validate(options.delay_steps < options.every_steps,
           "optimizer.outer.delay_steps is {}, but the next exchange begins after {} steps "
           "(optimizer.outer.every_steps); lower it",
           options.delay_steps, options.every_steps);
  check_device(options, offload);
  for (const auto& unit : layout.units())
    validate(
        (unit.sharded & dims.apart()).none(),
        "sharding.spec shards {} along {}, whose ranks train apart (optimizer.outer); shard it "
        "along other axes",
        unit.name, comm::to_string(dims.apart(), dims));
}

std::vector<OuterAction> outer_actions(const OuterOptions& options, std::int64_t step,
                                       std::int64_t last_step,
                                       const std::vector<std::int64_t>& sent_after) {
  using enum OuterAction::Kind;
  const auto [every, delay] = std::pair(options.every_steps, options.delay_steps);
  const bool ends = step == last_step;
  std::vector<OuterAction> late, sent, applied;
  for (int f = 0; f < static_cast<int>(options.fragments); ++f) {
    const bool is_sent = ends || (step + f * every / options.fragments) % every == 0;
    const auto under_way_since = sent_after[static_cast<std::size_t>(f)];
    // Before the next one, also if that comes early: the run ends, or its options have changed.
    if (under_way_since > 0 && (is_sent || step - under_way_since >= delay))
      late.push_back({apply_late, f});
    if (!is_sent) continue;
    sent.push_back({send, f});
    if (ends || delay == 0) applied.push_back({apply, f});
  }
  for (const auto& more : {sent, applied}) late.insert(late.end(), more.begin(), more.end());
  return late;
}

OuterOptimizer::OuterOptimizer(const OuterOptions& options, sharding::ShardedState& state,
                               comm::DeviceMesh& mesh)
    : options_(options), state_(state), replicas_(mesh.along(mesh.dims().apart())) {
  const auto& layout = state.layout();
  // A block with its neighbors is not rounded where ranks that hold copies would then differ.
  const auto is_exact = [&](model::ParameterId id) { return layout.copied_beside_parts(id).any(); };
  std::int64_t largest = 0, exact_numel = 0;
  pending_.sent_after.resize(static_cast<std::size_t>(options.fragments));
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const auto& unit = layout.units()[u];
    if (unit.frozen) continue;
    // In turn, so that each fragment has layers of all depths, in all pipeline stages.
    const auto fragment = static_cast<int>(pending_.units++ % options.fragments);
    if (!layout.holds(u, state.rank())) continue;
    units_.push_back({u, fragment, "what replicas learned of " + unit.name,
                      layout.pieces_if(is_exact, u, state.rank())});
    largest = std::max(largest, unit.shard_numel);
    exact_numel = std::max(exact_numel, layout.max_numel_if(is_exact, u, state.rank()));
  }
  if (largest == 0) return;
  const device::ScopedMemoryTag use(device::MemoryUse::optimizer);
  replicas_.collectives->set_subject("the outer optimizer");
  if (state.memory() == device::MemoryKind::host)
    staging_ = replicas_.collectives->allocate_symmetric(largest * size_of(DType::f32));
  if (options.reduce_dtype != ReduceDType::automatic)
    quantized_.emplace(replicas_, largest, exact_numel, format_of(options.reduce_dtype));
}

void OuterOptimizer::start() {
  const auto& weights = state_.outer().front();
  for (const auto& unit : units_)
    ops::copy(state_.stream(), weights.shards[unit.number], state_.masters().shards[unit.number]);
}

void OuterOptimizer::after_step(std::int64_t step, std::int64_t last_step,
                                const std::function<void(std::size_t unit)>& on_updated) {
  using Kind = OuterAction::Kind;
  for (const auto& [kind, fragment] :
       outer_actions(options_, step, last_step, pending_.sent_after)) {
    for (auto& unit : units_) {
      if (unit.fragment != fragment) continue;
      if (kind == Kind::send) {
        send(unit);
        continue;
      }
      apply_to(unit, kind == Kind::apply_late ? static_cast<float>(options_.local_share) : 0);
      on_updated(unit.number);
    }
    pending_.sent_after[static_cast<std::size_t>(fragment)] = kind == Kind::send ? step : 0;
  }
}

void OuterOptimizer::settle() {
  for (const auto& unit : units_) state_.stream().wait(unit.exchanged);
}

sharding::QuantizationSquares OuterOptimizer::take_squares() {
  return quantized_ && !pending() ? quantized_->take_squares() : sharding::QuantizationSquares();
}

std::optional<PendingExchanges> OuterOptimizer::pending() const {
  const bool any = std::ranges::any_of(pending_.sent_after, [](auto step) { return step > 0; });
  return any ? std::optional(pending_) : std::nullopt;
}

void OuterOptimizer::restore(const std::optional<PendingExchanges>& pending) {
  if (!pending) return;
  const auto fragments = std::ssize(pending->sent_after);
  validate(fragments == options_.fragments && pending->units == pending_.units,
           "the checkpoint was made while an exchange of {} fragments in {} units was under way "
           "(optimizer.outer.delay_steps), this run has {} in {}; restore "
           "optimizer.outer.fragments and sharding.wrap, or resume from another checkpoint",
           fragments, pending->units, options_.fragments, pending_.units);
  pending_ = *pending;
}

Tensor OuterOptimizer::difference(std::size_t unit) const {
  const auto& tensors = options_.delay_steps > 0 ? state_.outer().back() : state_.gradients();
  return tensors.shards[unit];
}

/// Starts to exchange how far the replicas have moved.
void OuterOptimizer::send(Unit& unit) {
  auto& stream = state_.stream();
  const auto difference = this->difference(unit.number);
  ops::scaled_difference(stream, difference, state_.outer().front().shards[unit.number],
                         state_.masters().shards[unit.number],
                         1.0F / static_cast<float>(replicas_.size));
  const auto error =
      options_.error_feedback ? state_.moments().back().shards[unit.number] : Tensor();
  replicas_.collectives->set_subject(unit.subject.c_str());
  unit.exchanged = staging_ ? all_reduce_through_device(unit, difference)
                            : all_reduce(unit, difference, stream.record(), error);
}

device::Event OuterOptimizer::all_reduce(const Unit& unit, const Tensor& data,
                                         const device::Event& after, const Tensor& error) {
  if (!quantized_) return replicas_.collectives->all_reduce(data, after);
  return quantized_->all_reduce(data, after, views_of(unit.exact, data), error);
}

/// For a difference in host memory.
device::Event OuterOptimizer::all_reduce_through_device(const Unit& unit,
                                                        const Tensor& difference) {
  auto& compute = device::compute_stream();
  compute.wait(state_.stream().record());
  const auto staged = staging_.tensor(DType::f32, {difference.numel()});
  device::upload_async(compute, staged, difference.data());
  compute.wait(all_reduce(unit, staged, compute.record(), {}));
  return device::download_async(compute, difference.data(), staged);
}

void OuterOptimizer::apply_to(const Unit& unit, float local_share) {
  const auto u = unit.number;
  const auto& outer = state_.outer();
  // No gradient moves selection biases, so there is no slope for an optimizer: the mean counts.
  const bool averages = state_.layout().units()[u].fp32;
  const bool has_momentum = options_.name == OuterName::nesterov && !averages;
  state_.stream().wait(unit.exchanged);
  ops::outer_step(state_.stream(),
                  {.outer = outer.front().shards[u],
                   .momentum = has_momentum ? outer[1].shards[u] : Tensor(),
                   .difference = difference(u),
                   .parameter = state_.masters().shards[u],
                   .copy = state_.weights(u).copy},
                  {.lr = averages ? 1.0F : static_cast<float>(options_.lr),
                   .momentum = static_cast<float>(options_.momentum),
                   .local_share = local_share});
}

}  // namespace llamesh::optim
