#include "sharding/fsdp.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include "comm/backoff.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {

using model::index;
using model::Pass;

namespace {

bool poison_is_wanted() {
  const char* value = std::getenv("LLAMESH_POISON");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

Fsdp::Fsdp(ShardedState& state, comm::DeviceMesh& mesh, const ShardingOptions& sharding,
           const PrecisionOptions& precision)
    : layout_(state.layout()),
      mesh_(mesh),
      reshard_rule_(reshard_of(sharding.strategy, sharding.reshard_after_forward,
                               mesh.dims().group_size(mesh.dims().named({"shard"})))),
      prefetch_ahead_(sharding.prefetch),
      prefetch_limit_(sharding.prefetch_limit),
      compute_dtype_(precision.parameters),
      reduce_dtype_(precision.reduce),
      poison_(poison_is_wanted()),
      heads_(layout_.table().modules.size()),
      index_in_unit_(layout_.table().parameters.size()),
      units_(layout_.units().size()) {
  for (const auto& of_state : state.groups()) {
    groups_.push_back(make_group(state, of_state));
    for (const auto u : of_state.units) units_[u].group = &groups_.back();
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitState& unit = units_[u];
    unit.master = state.masters().shards[u];
    unit.gradient = state.gradients().shards[u];
    unit.parameters = state.gathered_masters(u);
    unit.stays_gathered = static_cast<bool>(unit.parameters);
    for (const auto module : layout_.units()[u].modules) {
      auto& heads = heads_[index(module)];
      if (heads.first == heads.last) heads.first = u;
      expects(heads.first == u || heads.last == u,
              "{} does not follow the other units of its module", layout_.units()[u].name);
      heads.last = u + 1;
    }
    const auto& parameters = layout_.units()[u].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) index_in_unit_[index(parameters[i])] = i;
    unit.written.assign(parameters.size(), false);
  }
  find_partial_sums(state);
}

/// Collective over the mesh.
void Fsdp::find_partial_sums(const ShardedState& state) {
  std::map<unsigned long, PartialSums*> by_axes;  // every rank makes the groups in the same order
  for (std::size_t p = 0; p < layout_.table().parameters.size(); ++p) {
    const auto axes = layout_.placement(static_cast<ParameterId>(p)).partial;
    if (axes.none() || by_axes.contains(axes.to_ulong())) continue;
    partial_.push_back({mesh_.along(axes), {}, {}});
    by_axes[axes.to_ulong()] = &partial_.back();
  }
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const auto& piece : layout_.pieces(u, state.rank())) {
      const auto axes = layout_.placement(piece.parameter).partial;
      if (axes.any())
        by_axes[axes.to_ulong()]->pieces.push_back(
            units_[u].gradient.slice(piece.offset, piece.count));
    }
  for (auto& sums : partial_) {
    std::int64_t bytes = 0;
    for (const auto& piece : sums.pieces) bytes += piece.bytes();
    const device::AllocatesFor use(device::MemoryUse::gradients);
    // The ranks of the group own the same pieces.
    if (bytes > 0) sums.buffer = sums.axis.collectives->allocate_symmetric(bytes);
  }
}

/// Collective over the mesh.
Fsdp::Group Fsdp::make_group(const ShardedState& state, const ShardedState::Group& units) {
  auto& shard = mesh_.along(units.sharded);
  const auto gathered_over = [dtype = compute_dtype_](comm::DeviceMesh::Axis& axis) {
    return [&axis, dtype](std::int64_t numel) {
      return axis.collectives->allocate_gathered(numel / axis.size * size_of(dtype));
    };
  };
  const auto gradients = [&shard, dtype = reduce_dtype_](std::int64_t numel) {
    return shard.collectives->allocate_symmetric(numel * size_of(dtype));
  };
  const auto count = layout_.units().size();
  Group group{shard,
              mesh_.along(units.replicas),
              SlotPool(gathered_over(shard), count, /*behind=*/0),
              SlotPool(gradients, count, /*behind=*/1),
              secondary_axis(state, units),
              std::nullopt};
  if (group.secondary && group.secondary->collectives->shares_gathered())
    group.secondary_slots.emplace(gathered_over(*group.secondary), count, /*behind=*/0);
  return group;
}

/// The ranks that have the secondary shards of these units together; null where the units are not
/// sharded, always gathered, or not resharded to a group. Collective over the mesh.
comm::DeviceMesh::Axis* Fsdp::secondary_axis(const ShardedState& state,
                                             const ShardedState::Group& units) {
  if (reshard_rule_ != Reshard::to_group) return nullptr;
  const auto inner = mesh_.dims().inner("shard");
  expects(inner.any(), "the shard axis of {} is not split", comm::to_string(mesh_.dims()));
  const bool stays_gathered = static_cast<bool>(state.gathered_masters(units.units.front()));
  return (units.sharded & inner).none() || stays_gathered ? nullptr : &mesh_.along(inner);
}

Fsdp::~Fsdp() {
  // The buffers must outlive the collectives that use them, also when an error unwinds us: then the
  // other ranks may never come, and waits for them are given up first.
  if (std::uncaught_exceptions() > 0) comm::stop_waiting();
  // Neither may kernels still read them: NCCL takes its memory back at once, as cudaFree() does
  // not.
  std::vector<device::Stream*> streams{&compute_};
  for (const auto& group : groups_)
    for (const auto* axis : {&group.shard, &group.replicas, group.secondary})
      if (axis) streams.push_back(&axis->collectives->stream());
  for (auto* stream : streams) {
    try {
      stream->record().wait();
    } catch (...) {  // the error has been, or is being, reported by whoever waited for the result
    }
  }
}

void Fsdp::enter(model::ModuleId module, Pass pass) {
  const auto& heads = heads_[index(module)];
  bool first = false;
  for (auto u = heads.first; u < heads.last; ++u) first = units_[u].entered++ == 0;
  if (!first) return;
  for (auto u = heads.first; u < heads.last; ++u) gather(u);
  prefetch(heads, pass);
  for (auto u = heads.first; u < heads.last; ++u) compute_.wait(units_[u].ready);
}

void Fsdp::leave(model::ModuleId module, Pass pass) {
  const auto& heads = heads_[index(module)];
  const bool keep = pass == Pass::recompute ||
                    (pass == Pass::forward && reshard_rule_ == Reshard::after_backward);
  for (auto u = heads.first; u < heads.last; ++u) {
    if (--units_[u].entered > 0) continue;
    if (pass == Pass::backward) reduce(u);
    if (!keep) reshard(u, pass);
  }
}

/// A secondary shard where there is one: from the end of the unit's forward pass to that of its
/// backward pass.
Fsdp::Source Fsdp::source_of(const UnitState& unit) const {
  auto& group = *unit.group;
  if (!unit.has_secondary) return {group.shard, group.gathered_slots, unit.master};
  return {*group.secondary, group.secondary_slots ? *group.secondary_slots : group.gathered_slots,
          secondary_shard(unit)};
}

void Fsdp::gather(std::size_t u) {
  UnitState& unit = units_[u];
  if (unit.gathered) return;
  unit.gathered = true;
  const auto [axis, slots, shard] = source_of(unit);
  device::Event free;
  if (!unit.stays_gathered) {
    const std::int64_t numel = layout_.units()[u].padded_numel;
    const device::AllocatesFor use(device::MemoryUse::gathered_weights);
    const auto& slot = slots.acquire(u, numel);
    unit.parameters = slot.buffer.tensor(compute_dtype_, {numel});
    free = slot.free_after;
  }
  axis.collectives->set_subject(layout_.units()[u].name.c_str());
  unit.ready = axis.collectives->all_gather(unit.parameters, shard, free);
}

/// Gathers what the pass enters after these units, so that it arrives while they compute. Which
/// units depends on nothing but the place in the pass.
void Fsdp::prefetch(Heads units, Pass pass) {
  // What is recomputed runs forward through units whose successors are done with.
  if (pass == Pass::recompute) return;
  const bool backward = pass == Pass::backward;
  std::int64_t bytes = 0;
  for (int ahead = 0; ahead < prefetch_ahead_; ++ahead) {
    if (backward ? units.first == 0 : units.last == units_.size()) return;
    const auto next = backward ? units.first - 1 : units.last;
    units = heads_[index(layout_.units()[next].modules.front())];
    for (auto u = units.first; u < units.last; ++u) bytes += gathered_bytes(u);
    if (prefetch_limit_ > 0 && bytes > prefetch_limit_) return;
    for (auto u = units.first; u < units.last; ++u) gather(u);
  }
}

std::int64_t Fsdp::gathered_bytes(std::size_t u) const {
  return units_[u].stays_gathered ? 0 : layout_.units()[u].padded_numel * size_of(compute_dtype_);
}

void Fsdp::reshard(std::size_t u, Pass pass) {
  UnitState& unit = units_[u];
  unit.gathered = false;
  if (unit.stays_gathered) return;
  const auto [axis, slots, shard] = source_of(unit);
  const bool keeps = pass == Pass::forward && unit.group->secondary != nullptr;
  if (keeps) keep_secondary_shard(unit);
  if (poison_ && (axis.size == 1 || !axis.collectives->shares_gathered()))
    device::set_bytes(compute_, unit.parameters, device::nan_bytes);
  if (poison_ && unit.has_secondary) device::set_bytes(compute_, shard, device::nan_bytes);
  slots.release(u, compute_.record());
  unit.has_secondary = keeps;
}

Tensor Fsdp::secondary_shard(const UnitState& unit) const {
  return unit.secondary.tensor(compute_dtype_, {unit.secondary.bytes() / size_of(compute_dtype_)});
}

/// Takes this rank's secondary shard from the gathered unit.
void Fsdp::keep_secondary_shard(UnitState& unit) {
  const auto& group = *unit.group->secondary;
  const auto numel = unit.parameters.numel() / group.size;
  const device::AllocatesFor use(device::MemoryUse::gathered_weights);
  if (!unit.secondary) unit.secondary = device::Buffer(numel * size_of(compute_dtype_));
  ops::copy(compute_, secondary_shard(unit), unit.parameters.slice(group.rank * numel, numel));
  group.collectives->stream().wait(compute_.record());
}

Tensor Fsdp::parameter(model::ParameterId id) {
  const UnitState& unit = units_[layout_.place(id).unit];
  expects(unit.entered > 0, "{} is read outside of its module", layout_.table()[id].name);
  return view(id, unit.parameters);
}

Tensor Fsdp::view(model::ParameterId id, const Tensor& unsharded) const {
  const auto& shape = layout_.local_shape(id);
  return unsharded.slice(layout_.place(id).offset, numel(shape)).reshape(shape);
}

/// Gives the unit a place for its unsharded gradients, padding zeroed.
void Fsdp::open_gradients(std::size_t u) {
  UnitState& unit = units_[u];
  if (accumulates_in_place(unit)) {
    unit.gradients = unit.gradient;
    if (micro_batch_.first) unit.written.assign(unit.written.size(), false);
    return;
  }
  const auto& placed = layout_.units()[u];
  const device::AllocatesFor use(device::MemoryUse::unsharded_gradients);
  const auto& slot = unit.group->gradient_slots.acquire(u, placed.padded_numel);
  compute_.wait(slot.free_after);  // at most one reduction behind us still reads its slot
  unit.gradients = slot.buffer.tensor(reduce_dtype_, {placed.padded_numel});
  const Tensor padding = unit.gradients.slice(placed.numel, placed.padded_numel - placed.numel);
  if (poison_) device::set_bytes(compute_, unit.gradients, device::nan_bytes);
  device::set_bytes(compute_, padding, 0);
  unit.written.assign(unit.written.size(), false);
}

model::GradientSlot Fsdp::gradient(model::ParameterId id) {
  const auto u = layout_.place(id).unit;
  UnitState& unit = units_[u];
  expects(unit.entered > 0, "the gradient of {} is written outside of its module",
          layout_.table()[id].name);
  if (!unit.gradients) open_gradients(u);
  auto written = unit.written[index_in_unit_[index(id)]];
  const Accumulate how = written ? Accumulate::yes : Accumulate::no;
  written = true;
  return {view(id, unit.gradients), how};
}

void Fsdp::no_gradient(model::ParameterId id) {
  const auto [tensor, how] = gradient(id);
  if (how == Accumulate::no) device::set_bytes(compute_, tensor, 0);
}

/// Sends the unit's gradients on their way: over the shard axis now, over the replicas when the
/// step's last micro-batch is in.
void Fsdp::reduce(std::size_t u) {
  UnitState& unit = units_[u];
  expects(std::all_of(unit.written.begin(), unit.written.end(), [](bool w) { return w; }),
          "{}: a parameter got no gradient", layout_.units()[u].name);
  auto& shard = unit.group->shard;
  auto& replicas = unit.group->replicas;
  const char* name = layout_.units()[u].name.c_str();
  unit.reduced = compute_.record();
  if (!accumulates_in_place(unit)) {
    shard.collectives->set_subject(name);
    unit.reduced = shard.collectives->reduce_scatter(
        unit.gradient, unit.gradients, micro_batch_.first ? Accumulate::no : Accumulate::yes,
        unit.reduced);
    unit.group->gradient_slots.release(u, unit.reduced);
  }
  unit.gradients = {};
  if (micro_batch_.last && replicas.size > 1) {
    replicas.collectives->set_subject(name);
    unit.reduced = replicas.collectives->all_reduce(unit.gradient, unit.reduced);
  }
}

void Fsdp::on_master_weights_updated() {
  for (auto& group : groups_) group.shard.collectives->stream().wait(compute_.record());
}

void Fsdp::finish_gradients() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    // The optimizer is about to change the masters: what is still gathered, or kept of it, would be
    // stale from then on.
    expects(!units_[u].gathered && !units_[u].has_secondary && units_[u].entered == 0,
            "{} is gathered at the end of a step", layout_.units()[u].name);
    compute_.wait(units_[u].reduced);
    units_[u].reduced = {};
  }
  for (auto& sums : partial_) complete(sums);
}

void Fsdp::complete(PartialSums& sums) {
  if (sums.pieces.empty()) return;
  const Tensor all = sums.buffer.tensor(DType::f32, {sums.buffer.bytes() / size_of(DType::f32)});
  const auto for_each = [&](auto visit) {
    std::int64_t at = 0;
    for (const auto& piece : sums.pieces) {
      visit(piece, all.slice(at, piece.numel()));
      at += piece.numel();
    }
  };
  for_each([&](const Tensor& piece, const Tensor& packed) { ops::copy(compute_, packed, piece); });
  sums.axis.collectives->set_subject("partial gradients");
  compute_.wait(sums.axis.collectives->all_reduce(all, compute_.record()));
  for_each([&](const Tensor& piece, const Tensor& packed) { ops::copy(compute_, piece, packed); });
}

}  // namespace llamesh::sharding
