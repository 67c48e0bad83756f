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
      reshard_rule_(reshard_of(sharding.strategy)),
      prefetch_ahead_(sharding.prefetch),
      compute_dtype_(precision.parameters),
      reduce_dtype_(precision.reduce),
      poison_(poison_is_wanted()),
      heads_(layout_.table().modules.size()),
      index_in_unit_(layout_.table().parameters.size()),
      units_(layout_.units().size()) {
  for (const auto& of_state : state.groups()) {
    groups_.push_back(make_group(of_state));
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
Fsdp::Group Fsdp::make_group(const ShardedState::Group& units) {
  auto& shard = mesh_.along(units.sharded);
  const auto gathered = [&shard, dtype = compute_dtype_](std::int64_t numel) {
    return shard.collectives->allocate_gathered(numel / shard.size * size_of(dtype));
  };
  const auto gradients = [&shard, dtype = reduce_dtype_](std::int64_t numel) {
    return shard.collectives->allocate_symmetric(numel * size_of(dtype));
  };
  return {shard, mesh_.along(units.replicas),
          SlotPool(gathered, layout_.units().size(), /*behind=*/0),
          SlotPool(gradients, layout_.units().size(), /*behind=*/1)};
}

Fsdp::~Fsdp() {
  // The buffers must outlive the collectives that use them, also when an error unwinds us: then the
  // other ranks may never come, and waits for them are given up first.
  if (std::uncaught_exceptions() > 0) comm::stop_waiting();
  // Neither may kernels still read them: NCCL takes its memory back at once, as cudaFree() does
  // not.
  std::vector<device::Stream*> streams{&compute_};
  for (const auto& group : groups_)
    for (const auto* axis : {&group.shard, &group.replicas})
      streams.push_back(&axis->collectives->stream());
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
    if (!keep) reshard(u);
  }
}

void Fsdp::gather(std::size_t u) {
  UnitState& unit = units_[u];
  if (unit.gathered) return;
  unit.gathered = true;
  device::Event free;
  if (!unit.stays_gathered) {
    const std::int64_t numel = layout_.units()[u].padded_numel;
    const device::AllocatesFor use(device::MemoryUse::gathered_weights);
    const auto& slot = unit.group->gathered_slots.acquire(u, numel);
    unit.parameters = slot.buffer.tensor(compute_dtype_, {numel});
    free = slot.free_after;
  }
  auto& collectives = *unit.group->shard.collectives;
  collectives.set_subject(layout_.units()[u].name.c_str());
  unit.ready = collectives.all_gather(unit.parameters, unit.master, free);
}

/// Gathers what the pass enters after these units, so that it arrives while they compute.
void Fsdp::prefetch(const Heads& units, Pass pass) {
  // What is recomputed runs forward through units whose successors are done with.
  if (prefetch_ahead_ == 0 || pass == Pass::recompute) return;
  const bool backward = pass == Pass::backward;
  if (backward ? units.first == 0 : units.last == units_.size()) return;
  const auto next = backward ? units.first - 1 : units.last;
  const auto& heads = heads_[index(layout_.units()[next].modules.front())];
  for (auto u = heads.first; u < heads.last; ++u) gather(u);
}

void Fsdp::reshard(std::size_t u) {
  UnitState& unit = units_[u];
  unit.gathered = false;
  if (unit.stays_gathered) return;
  const auto& shard = unit.group->shard;
  if (poison_ && (shard.size == 1 || !shard.collectives->shares_gathered()))
    device::set_bytes(compute_, unit.parameters, device::nan_bytes);
  unit.group->gathered_slots.release(u, compute_.record());
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
  auto& [shard, replicas, gathered_slots, gradient_slots] = *unit.group;
  const char* name = layout_.units()[u].name.c_str();
  unit.reduced = compute_.record();
  if (!accumulates_in_place(unit)) {
    shard.collectives->set_subject(name);
    unit.reduced = shard.collectives->reduce_scatter(
        unit.gradient, unit.gradients, micro_batch_.first ? Accumulate::no : Accumulate::yes,
        unit.reduced);
    gradient_slots.release(u, unit.reduced);
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
    // The optimizer is about to change the masters: a unit still gathered would be stale from then
    // on.
    expects(!units_[u].gathered && units_[u].entered == 0, "{} is gathered at the end of a step",
            layout_.units()[u].name);
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
