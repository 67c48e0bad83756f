#include <algorithm>

#include "device/device.hpp"
#include "sharding/fsdp.hpp"

// Gradient path: unsharded from the backward pass, through the reductions, into the state.
namespace llamesh::sharding {

using model::index;

/// Allocates the unit's unsharded gradients, with zeroed padding.
void Fsdp::allocate_gradients(std::size_t u) {
  UnitState& unit = units_[u];
  const auto& placed = layout_.units()[u];
  if (accumulates_in_place(unit)) {
    compute_.wait(unit.gradient_here);
    unit.gradients = unit.gradient;
    if (!micro_batch_.first) return;
  } else {
    const device::ScopedMemoryTag use(device::MemoryUse::unsharded_gradients);
    const auto& slot = unit.group->gradient_slots.acquire(u, placed.padded_numel);
    compute_.wait(slot.free_after);  // at most one earlier reduction still reads its slot
    unit.gradients = slot.buffer.tensor(reduce_dtype_, {placed.padded_numel});
  }
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
  if (!adds_to_shard(unit)) return;
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
  if (on_gradients_) on_gradients_(u, unit.gradients.slice(0, layout_.units()[u].numel));
  if (micro_batch_.discarded) return discard(u);
  if (!reduces_now(unit)) return;
  auto& reductions = *unit.group->reductions.collectives;
  auto& replicas = unit.group->replicas;
  const char* name = layout_.units()[u].name.c_str();
  unit.reduced = compute_.record();
  if (!accumulates_in_place(unit)) {
    reductions.stream().wait(unit.gradient_here);
    reductions.set_subject(name);
    unit.reduced = reductions.reduce_scatter(unit.gradient, unit.gradients,
                                             adds_to_shard(unit) ? Accumulate::yes : Accumulate::no,
                                             unit.reduced);
    unit.group->gradient_slots.release(u, unit.reduced);
  }
  unit.gradients = {};
  if (micro_batch_.last && replicas.size > 1) {
    replicas.collectives->set_subject(name);
    unit.reduced = replicas.collectives->all_reduce(unit.gradient, unit.reduced);
  }
  if (copies_) unit.reduced = store_gradient_shard(u);
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
