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

void check(const OuterOptions& options, const sharding::ShardLayout& layout,
           sharding::Offload offload) {
  if (!options.enabled()) return;
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
  validate(
      options.delay_steps == 0 || offload == sharding::Offload::none,
      "optimizer.outer.delay_steps is {}, but with sharding.offload the weights are not on the "
      "device between steps; set it to 0",
      options.delay_steps);
  for (const auto& unit : layout.units())
    validate(
        (unit.sharded & dims.apart()).none(),
        "sharding.spec shards {} along {}, whose ranks train apart (optimizer.outer); shard it "
        "along other axes",
        unit.name, comm::to_string(dims.apart(), dims));
}

std::vector<OuterAction> outer_actions(const OuterOptions& options, std::int64_t step,
                                       std::int64_t last_step) {
  using enum OuterAction::Kind;
  const auto [every, delay] = std::pair(options.every_steps, options.delay_steps);
  const bool ends = step == last_step;
  const auto is_due_after = [&](std::int64_t fragment, std::int64_t s) {
    return s > 0 && (s + fragment * every / options.fragments) % every == 0;
  };
  std::vector<OuterAction> late, sent, applied;
  for (int f = 0; f < static_cast<int>(options.fragments); ++f) {
    // At the end of the run, what is under way arrives before its time.
    for (auto s = step - delay; s < (ends ? step : step - delay + 1) && delay > 0; ++s)
      if (is_due_after(f, s)) late.push_back({apply_late, f});
    if (!ends && !is_due_after(f, step)) continue;
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
  std::int64_t largest = 0, trained = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const auto& unit = layout.units()[u];
    if (unit.frozen) continue;
    // In turn, so that each fragment has layers of all depths, in all pipeline stages.
    const auto fragment = static_cast<int>(trained++ % options.fragments);
    if (!layout.holds(u, state.rank())) continue;
    units_.push_back({u, fragment, "what replicas learned of " + unit.name});
    largest = std::max(largest, unit.shard_numel);
  }
  if (largest == 0) return;
  const device::ScopedMemoryTag use(device::MemoryUse::optimizer);
  replicas_.collectives->set_subject("the outer optimizer");
  if (state.memory() == device::MemoryKind::host)
    staging_ = replicas_.collectives->allocate_symmetric(largest * size_of(DType::f32));
  if (options.reduce_dtype != ReduceDType::automatic)
    quantized_.emplace(replicas_, largest, options.reduce_dtype == ReduceDType::int8 ? 8 : 4);
}

void OuterOptimizer::start() {
  const auto& weights = state_.outer().front();
  for (const auto& unit : units_)
    ops::copy(state_.stream(), weights.shards[unit.number], state_.masters().shards[unit.number]);
}

void OuterOptimizer::after_step(std::int64_t step, std::int64_t last_step,
                                const std::function<void(std::size_t unit)>& on_updated) {
  for (const auto& action : outer_actions(options_, step, last_step)) {
    for (auto& unit : units_) {
      if (unit.fragment != action.fragment) continue;
      if (action.kind == OuterAction::Kind::send) {
        send(unit);
        ++under_way_;
        continue;
      }
      if (under_way_ > 0) --under_way_;  // none is after a resume
      const bool late = action.kind == OuterAction::Kind::apply_late;
      apply(unit, late ? static_cast<float>(options_.local_share) : 0);
      on_updated(unit.number);
    }
  }
}

void OuterOptimizer::settle() {
  for (const auto& unit : units_) state_.stream().wait(unit.exchanged);
}

sharding::QuantizationSquares OuterOptimizer::take_squares() {
  return quantized_ && under_way_ == 0 ? quantized_->take_squares()
                                       : sharding::QuantizationSquares();
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
  replicas_.collectives->set_subject(unit.subject.c_str());
  unit.exchanged =
      staging_ ? all_reduce_through_device(difference) : all_reduce(difference, stream.record());
}

device::Event OuterOptimizer::all_reduce(const Tensor& data, const device::Event& after) {
  return quantized_ ? quantized_->all_reduce(data, after)
                    : replicas_.collectives->all_reduce(data, after);
}

/// For a difference in host memory.
device::Event OuterOptimizer::all_reduce_through_device(const Tensor& difference) {
  auto& compute = device::compute_stream();
  compute.wait(state_.stream().record());
  const auto staged = staging_.tensor(DType::f32, {difference.numel()});
  device::upload_async(compute, staged, difference.data());
  compute.wait(all_reduce(staged, compute.record()));
  return device::download_async(compute, difference.data(), staged);
}

void OuterOptimizer::apply(const Unit& unit, float local_share) {
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
