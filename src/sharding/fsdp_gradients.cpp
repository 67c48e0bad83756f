#include <algorithm>
#include <utility>

#include "device/device.hpp"
#include "ops/ops.hpp"
#include "sharding/fsdp.hpp"

// Gradient path: unsharded from the backward pass, through the reductions, into the state.
namespace llamesh::sharding {

using model::index;

/// Allocates the tree's sums for this many micro-batches, without the first one.
void Fsdp::allocate_sums(std::size_t u, std::int64_t micro_batches) {
  const device::ScopedMemoryTag use(device::MemoryUse::gradients);
  const auto& placed = layout_.units()[u];
  const auto numel = has_tree_here(units_[u]) ? placed.padded_numel : placed.shard_numel;
  for (int sum = 1; sum < tree_sums(micro_batches); ++sum)
    units_[u].sums.emplace_back(numel * size_of(DType::f32));
}

/// Returns memory for the unit's unsharded gradients in this micro-batch.
Tensor Fsdp::place_for_gradients(std::size_t u) {
  UnitState& unit = units_[u];
  const auto numel = layout_.units()[u].padded_numel;
  const bool tree = has_tree_here(unit);
  const auto place = tree ? tree_place(micro_batch_.index) : TreePlace{};
  if (place.sum > 0 && !place.adds) return sum_of(u, place.sum);
  if (accumulates_in_place(unit) && !place.adds) {
    compute_.wait(unit.gradient_here);
    return unit.gradient;
  }
  const device::ScopedMemoryTag use(device::MemoryUse::unsharded_gradients);
  const auto& slot =
      (place.adds ? unit.group->leaves : unit.group->gradient_slots).acquire(u, numel);
  compute_.wait(slot.free_after);  // at most one earlier reduction still reads its slot
  return slot.buffer.tensor(reduce_dtype_, {numel});
}

/// Allocates the unit's unsharded gradients, with zeroed padding.
void Fsdp::allocate_gradients(std::size_t u) {
  UnitState& unit = units_[u];
  const auto& placed = layout_.units()[u];
  unit.gradients = place_for_gradients(u);
  const bool continues =
      accumulates_in_place(unit) && !has_tree_here(unit) && !micro_batch_.first();
  if (continues) return;
  unit.written.assign(unit.written.size(), false);
  if (unit.gradients.data() == state_.gradients().shards[u].data()) return;  // padding stays zero
  const Tensor padding = unit.gradients.slice(placed.numel, placed.padded_numel - placed.numel);
  if (poison_) device::set_bytes(compute_, unit.gradients, device::nan_bytes);
  device::set_bytes(compute_, padding, 0);
}

/// With the state in host memory: allocates the unit's gradient shard on the device and loads the
/// sum from earlier micro-batches in the step.
void Fsdp::fetch_gradient_shard(std::size_t u) {
  UnitState& unit = units_[u];
  if (!copies_ || unit.gradient || !reduces_now(unit)) return;
  const device::ScopedMemoryTag use(device::MemoryUse::gradients);
  const auto numel = layout_.units()[u].shard_numel;
  const auto& slot = unit.group->gradient_shards.acquire(u, numel);
  unit.gradient = slot.buffer.tensor(DType::f32, {numel});
  unit.gradient_here = slot.free_after;
  if (!place_of_reduction(unit).adds) return;
  copies_->to_device.wait(slot.free_after);
  copies_->to_device.wait(unit.reduced);  // from the previous micro-batch, and stored
  unit.gradient_here =
      device::upload_async(copies_->to_device, unit.gradient, state_.gradients().shards[u].data());
}

/// Copies the gradient shard to the host.
device::Event Fsdp::store_gradient_shard(std::size_t u) {
  UnitState& unit = units_[u];
  copies_->to_host.wait(unit.reduced);
  auto stored =
      device::download_async(copies_->to_host, state_.gradients().shards[u].data(), unit.gradient);
  unit.group->gradient_shards.release(u, stored);
  unit.gradient = {};
  return stored;
}

model::GradientSlot Fsdp::gradient(model::ParameterId id) {
  if (layout_.table()[id].frozen) return {{}, Accumulate::no};
  const auto u = layout_.place(id).unit;
  UnitState& unit = units_[u];
  expects(unit.entered > 0, "the gradient of {} is written outside of its module",
          layout_.table()[id].name);
  if (!unit.gradients) allocate_gradients(u);
  auto written = unit.written[index_in_unit_[index(id)]];
  const Accumulate accumulate = written ? Accumulate::yes : Accumulate::no;
  written = true;
  return {view(id, unit.gradients), accumulate};
}

void Fsdp::no_gradient(model::ParameterId id) {
  const auto [tensor, accumulate] = gradient(id);
  if (tensor && accumulate == Accumulate::no) device::set_bytes(compute_, tensor, 0);
}

/// Starts reducing the unit's gradients if this micro-batch does: over the shard axis now, over the
/// replicas after the step's last micro-batch.
void Fsdp::reduce(std::size_t u) {
  UnitState& unit = units_[u];
  expects(std::all_of(unit.written.begin(), unit.written.end(), [](bool w) { return w; }),
          "{}: a parameter got no gradient", layout_.units()[u].name);
  if (on_gradients_)
    on_gradients_(micro_batch_, u, unit.gradients.slice(0, layout_.units()[u].numel));
  if (micro_batch_.discarded) return discard(u);
  partial_sums_.complete(u, unit.gradients);
  if (has_tree_here(unit)) add_to_total(u);
  if (!reduces_now(unit)) return;
  unit.reduced = compute_.record();
  if (!accumulates_in_place(unit)) reduce_over_shards(u);
  unit.gradients = {};
  if (micro_batch_.last() && unit.group->replicas.size > 1) {
    reduce_deferred();
    deferred_ = u;
    if (!defers_replicas(unit)) reduce_deferred();
  }
  const bool complete = !adds_as_tree_ || micro_batch_.last();
  if (copies_ && complete) unit.reduced = store_gradient_shard(u);
}

/// Starts the deferred reduction over the replicas, if there is one.
void Fsdp::reduce_deferred() {
  if (!deferred_) return;
  const auto u = *std::exchange(deferred_, std::nullopt);
  units_[u].reduced = reduce_over_replicas(u);
}

device::Event Fsdp::reduce_over_replicas(std::size_t u) {
  UnitState& unit = units_[u];
  auto& replicas = *unit.group->replicas.collectives;
  replicas.set_subject(layout_.units()[u].name.c_str());
  auto& quantized = unit.group->quantized_replicas;
  if (!quantized) return replicas.all_reduce(unit.gradient, unit.reduced);
  const auto* errors = state_.gradient_errors();
  return quantized->all_reduce(unit.gradient, unit.reduced, views_of(unit.exact, unit.gradient),
                               errors ? errors->shards[u] : Tensor());
}

/// Starts the reduction over the shard axis, into the gradient shard or one of the tree's sums.
void Fsdp::reduce_over_shards(std::size_t u) {
  UnitState& unit = units_[u];
  auto& reductions = *unit.group->reductions.collectives;
  auto& quantized = unit.group->quantized_reductions;
  auto [sum, adds, carries] = place_of_reduction(unit);
  const auto accumulate = adds ? Accumulate::yes : Accumulate::no;
  const auto reduce_by = [&](auto& collectives) {
    collectives.stream().wait(unit.gradient_here);
    collectives.set_subject(layout_.units()[u].name.c_str());
    unit.reduced =
        collectives.reduce_scatter(sum_of(u, sum), unit.gradients, accumulate, unit.reduced);
  };
  quantized ? reduce_by(*quantized) : reduce_by(reductions);
  unit.group->gradient_slots.release(u, unit.reduced);
  for (; carries > 0; --carries, --sum) {
    ops::add(reductions.stream(), sum_of(u, sum - 1), sum_of(u, sum));
    unit.reduced = reductions.stream().record();
  }
}

/// Adds the micro-batch's gradients to those of others on this rank. After the last one, the unit's
/// gradients are the total.
void Fsdp::add_to_total(std::size_t u) {
  UnitState& unit = units_[u];
  auto [sum, adds, carries] = tree_place(micro_batch_.index);
  if (micro_batch_.first()) unit.total = unit.gradients;
  if (adds) {
    ops::add(compute_, sum_of(u, sum), unit.gradients);
    unit.group->leaves.release(u, compute_.record());
  }
  for (; carries > 0; --carries, --sum) ops::add(compute_, sum_of(u, sum - 1), sum_of(u, sum));
  unit.gradients = micro_batch_.last() ? std::exchange(unit.total, {}) : Tensor();
}

/// Returns one of the tree's sums. The first is the total: the gradient shard, or whole gradients
/// that are reduced at the end.
Tensor Fsdp::sum_of(std::size_t u, int sum) const {
  const UnitState& unit = units_[u];
  if (sum == 0) return unit.total ? unit.total : unit.gradient;
  const auto& buffer = unit.sums[static_cast<std::size_t>(sum - 1)];
  return buffer.tensor(DType::f32, {buffer.bytes() / size_of(DType::f32)});
}

/// Releases the unit's gradients unread. The next micro-batch overwrites the gradient shard.
void Fsdp::discard(std::size_t u) {
  UnitState& unit = units_[u];
  const auto done = compute_.record();
  if (!accumulates_in_place(unit)) unit.group->gradient_slots.release(u, done);
  unit.gradients = {};
  if (!copies_) return;
  unit.group->gradient_shards.release(u, done);
  unit.gradient = {};
}

void Fsdp::finish_gradients() {
  reduce_deferred();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    // The optimizer is about to change the masters, so anything still gathered or kept would be
    // stale.
    expects(!units_[u].gathered && !units_[u].has_secondary && units_[u].entered == 0,
            "{} is gathered at the end of a step", layout_.units()[u].name);
    state_.stream().wait(units_[u].reduced);
    units_[u].reduced = {};
  }
  partial_sums_.complete();
}

}  // namespace llamesh::sharding
