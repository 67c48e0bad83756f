#include "sharding/fsdp.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "core/trace.hpp"
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

const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::evaluate:
      return "evaluate";
    case Pass::forward:
      return "forward";
    case Pass::recompute:
      return "recompute";
    case Pass::backward:
      return "backward";
  }
  return "";
}

}  // namespace

Fsdp::Fsdp(ShardedState& state, comm::DeviceMesh& mesh, const ShardingOptions& sharding,
           const PrecisionOptions& precision, std::int64_t tree_micro_batches,
           PartialSums::When partial_sums)
    : state_(state),
      layout_(state.layout()),
      mesh_(mesh),
      reshard_rule_(reshard_of(sharding.strategy, sharding.reshard_after_forward,
                               mesh.dims().group_size(mesh.dims().named({"shard"})))),
      reduce_rule_(sharding.reduce),
      prefetch_ahead_(sharding.prefetch),
      prefetch_limit_(sharding.prefetch_limit),
      compute_dtype_(precision.parameters),
      reduce_dtype_(precision.reduce),
      backward_end_(layout_.table().backward_end()),
      adds_as_tree_(tree_micro_batches > 1),
      poison_(poison_is_wanted()),
      units_of_module_(layout_.table().modules.size()),
      index_in_unit_(layout_.table().parameters.size()),
      units_(layout_.units().size()),
      partial_sums_(state, mesh, partial_sums) {
  if (state.memory() == device::MemoryKind::host) copies_.emplace();
  for (const auto& of_state : state.groups()) {
    groups_.push_back(make_group(of_state, sharding));
    for (const auto u : of_state.units) {
      auto& group = groups_.back();
      units_[u].group = &group;
      units_[u].dtype = group.fp8_gather && group.fp8_gather->takes(u)
                            ? DType::e4m3
                            : of_state.dtype(compute_dtype_);
    }
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitState& unit = units_[u];
    unit.held = layout_.holds(u, state.rank());
    if (!copies_) unit.gradient = state.gradients().shards[u];
    unit.parameters = state.weights(u).gathered;
    unit.stays_gathered = static_cast<bool>(unit.parameters);
    for (const auto module : layout_.units()[u].modules) {
      auto& range = units_of_module_[index(module)];
      if (range.first == range.last) range.first = u;
      expects(range.first == u || range.last == u,
              "{} does not follow the other units of its module", layout_.units()[u].name);
      range.last = u + 1;
    }
    const auto& parameters = layout_.units()[u].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) index_in_unit_[index(parameters[i])] = i;
    unit.written.assign(parameters.size(), false);
    if (unit.held && !layout_.units()[u].frozen) allocate_sums(u, tree_micro_batches);
  }
  num_persistent_units_ = units_between_micro_batches();
}

/// Collective over the mesh.
Fsdp::Group Fsdp::make_group(const ShardedState::Group& units, const ShardingOptions& sharding) {
  auto& shard = mesh_.along(units.sharded);
  auto& reductions = mesh_.reductions_along(quantizes_reductions(units, sharding)
                                                ? mesh_.innermost_within_node(units.sharded)
                                                : units.sharded);
  auto& replicas = mesh_.along(units.replicas);
  const auto gathered_over = [](comm::DeviceMesh::Axis& axis) {
    return [&axis](std::int64_t bytes) {
      return axis.collectives->allocate_gathered((bytes / axis.size + 63) / 64 * 64);
    };
  };
  const auto gradients = [&reductions, dtype = reduce_dtype_](std::int64_t numel) {
    return reductions.collectives->allocate_symmetric(numel * size_of(dtype));
  };
  const auto host_dtype = units.codes ? DType::i8 : units.dtype(compute_dtype_);
  const auto weight_shards = [host_dtype](std::int64_t numel) {
    return device::Buffer(numel * size_of(host_dtype));
  };
  const auto gradient_shards = [&replicas](std::int64_t numel) {
    return replicas.collectives->allocate_symmetric(numel * size_of(DType::f32));
  };
  const auto leaves = [](std::int64_t numel) {
    return device::Buffer(numel * size_of(DType::f32));
  };
  const auto count = layout_.units().size();
  Group group{shard,
              reductions,
              replicas,
              SlotPool(gathered_over(shard), count, /*behind=*/0),
              SlotPool(gradients, count, /*behind=*/1),
              secondary_axis(units),
              std::nullopt,
              SlotPool(weight_shards, count, /*behind=*/1),
              SlotPool(gradient_shards, count, /*behind=*/1),
              SlotPool(leaves, count, /*behind=*/0)};
  if (group.secondary && group.secondary->collectives->shares_gathered())
    group.secondary_slots.emplace(gathered_over(*group.secondary), count, /*behind=*/0);
  quantize_exchanges(group, units, sharding);
  return group;
}

/// Returns true if the units' gradients are quantized on their way to the ranks that share them.
bool Fsdp::quantizes_reductions(const ShardedState::Group& units, const ShardingOptions& sharding) {
  return sharding.reduce_dtype != ReduceDType::automatic && !units.frozen && !units.fp32 &&
         !mesh_.along(units.sharded).within_node;
}

/// Collective over the mesh.
void Fsdp::quantize_exchanges(Group& group, const ShardedState::Group& units,
                              const ShardingOptions& sharding) {
  if (units.fp32) return;
  std::int64_t largest = 0;  // shard
  for (const auto u : units.held) largest = std::max(largest, layout_.units()[u].shard_numel);
  const auto& shard = group.shard;
  group.keeps_codes = units.codes.has_value();
  const bool crosses = shard.size > 1 && (sharding.gather_within_node || !shard.within_node);
  const auto dtype = units.dtype(compute_dtype_);
  const auto gathered_as = units.codes.value_or(ops::CodeFormat::int8);
  if (sharding.gather == GatherDType::fp8 && crosses && !group.keeps_codes) {
    group.fp8_gather.emplace(group.shard, layout_, units.held, dtype);
    const auto others = [dtype](std::int64_t numel) {
      return device::Buffer(numel * size_of(dtype));
    };
    group.other_slots.emplace(others, layout_.units().size(), /*behind=*/0);
  }
  if (group.keeps_codes || (sharding.gather == GatherDType::int8 && crosses))
    group.quantized_gather.emplace(group.shard, 1, largest, dtype, gathered_as,
                                   group.keeps_codes ? GatherSource::codes : GatherSource::numbers);
  if (group.quantized_gather && group.secondary && !shard.collectives->shares_gathered())
    group.quantized_secondary.emplace(*group.secondary, shard.size / group.secondary->size, largest,
                                      dtype, gathered_as, GatherSource::codes);
  const auto format = format_of(sharding.reduce_dtype);
  if (quantizes_reductions(units, sharding))
    group.quantized_reductions.emplace(mesh_, units.sharded, largest, format);
  if (sharding.reduce_dtype == ReduceDType::automatic || units.frozen || group.replicas.within_node)
    return;
  const auto is_exact = [this](model::ParameterId id) { return this->is_exact(id); };
  std::int64_t exact_numel = 0;
  for (const auto u : units.held) {
    units_[u].exact = layout_.pieces_if(is_exact, u, state_.rank());
    exact_numel = std::max(exact_numel, layout_.max_numel_if(is_exact, u, state_.rank()));
  }
  group.quantized_replicas.emplace(group.replicas, largest, exact_numel, format);
}

/// Returns true if a block with its neighbors must not be rounded, since ranks that hold copies
/// would then differ: in the gradient or, where they add that up later, in the errors.
bool Fsdp::is_exact(model::ParameterId id) const {
  const auto partial = layout_.dims().without_ones(layout_.placement(id).partial);
  const auto alike = layout_.copied_beside_parts(id) & ~partial;
  return alike.any() || (partial.any() && state_.gradient_errors() != nullptr);
}

/// Returns the ranks that jointly hold these units' secondary shards. Null if the units are not
/// sharded, always gathered, or not resharded to a group. Collective over the mesh.
comm::DeviceMesh::Axis* Fsdp::secondary_axis(const ShardedState::Group& units) {
  if (reshard_rule_ != Reshard::to_group) return nullptr;
  const auto inner = mesh_.dims().inner("shard");
  expects(inner.any(), "the shard axis of {} is not split", comm::to_string(mesh_.dims()));
  if ((units.sharded & inner).none() || units.stays_gathered) return nullptr;
  return &mesh_.along(inner | (units.sharded & mesh_.dims().named({"expert", "context"})));
}

/// Buffers must outlive the collectives and copies that use them, even when an error unwinds us.
/// Kernels must be done too: unlike cudaFree(), NCCL takes its memory back at once.
Fsdp::~Fsdp() {
  mesh_.drain();
  std::vector<device::Stream*> streams{&compute_};
  if (copies_) streams.insert(streams.end(), {&copies_->to_device, &copies_->to_host});
  for (auto* stream : streams) {
    try {
      stream->record().wait();
    } catch (...) {  // whoever waited for the result reports the error
    }
  }
}

void Fsdp::enter(model::ModuleId module, Pass pass) {
  if (Trace::on())
    Trace::instance().open("pass", name_of(pass), layout_.table().modules[index(module)].name);
  const auto& range = units_of_module_[index(module)];
  bool first = false;
  for_each_held(range, [&](std::size_t u) { first = units_[u].entered++ == 0; });
  if (!first) return;
  for_each_held(range, [&](std::size_t u) { unshard(u, pass); });
  prefetch(range, pass);
  for_each_held(range, [&](std::size_t u) { compute_.wait(units_[u].ready); });
}

void Fsdp::leave(model::ModuleId module, Pass pass) {
  const auto& range = units_of_module_[index(module)];
  for_each_held(range, [&](std::size_t u) {
    if (--units_[u].entered > 0) return;
    if (pass == Pass::backward && !layout_.units()[u].frozen) reduce(u);
    if (!stays_unsharded(u, pass)) reshard(u, pass);
  });
  if (Trace::on()) Trace::instance().close();
}

void Fsdp::unshard(std::size_t u, Pass pass) {
  gather(u, pass);
  if (pass == Pass::backward && !layout_.units()[u].frozen) fetch_gradient_shard(u);
}

/// Returns the secondary shard if there is one: from the end of the unit's forward pass to the end
/// of its backward pass.
Fsdp::Source Fsdp::source_of(std::size_t u) const {
  const UnitState& unit = units_[u];
  auto& group = *unit.group;
  if (!unit.has_secondary) return {group.shard, group.gathered_slots, state_.weights(u).shard};
  return {*group.secondary, group.secondary_slots ? *group.secondary_slots : group.gathered_slots,
          secondary_shard(unit)};
}

void Fsdp::gather(std::size_t u, Pass pass) {
  UnitState& unit = units_[u];
  if (unit.gathered) return;
  unit.gathered = true;
  auto [axis, slots, shard] = source_of(u);
  device::Event free;
  if (!unit.stays_gathered) {
    const std::int64_t numel = layout_.units()[u].padded_numel;
    const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
    const auto& slot = slots.acquire(u, numel * size_of(unit.dtype));
    unit.parameters = slot.buffer.tensor(unit.dtype, {numel});
    free = slot.free_after;
  }
  const bool on_host = !shard;
  if (on_host && axis.size == 1 && !unit.group->keeps_codes) {
    unit.ready = upload_weights(u, unit.parameters, free);
    return;
  }
  if (on_host) {
    const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
    const auto& source = state_.weights(u).on_host;
    const auto& slot = unit.group->weight_shards.acquire(u, source.numel());
    shard = slot.buffer.tensor(source.dtype(), {source.numel()});
    unit.weights_here = upload_weights(u, shard, slot.free_after);
  }
  axis.collectives->stream().wait(unit.weights_here);
  axis.collectives->set_subject(layout_.units()[u].name.c_str());
  unit.ready = gather_from(u, *axis.collectives, shard, free);
  // Also for Pass::evaluate: the units below the lowest one that is trained are entered with that,
  // and prefetch those which have a backward pass.
  if (unit.group->quantized_secondary && pass != Pass::backward && !unit.has_secondary)
    keep_secondary_codes(u);
  if (on_host) unit.group->weight_shards.release(u, unit.ready);
}

/// Starts to gather a unit from this shard or secondary shard once its slot is free.
device::Event Fsdp::gather_from(std::size_t u, comm::Collectives& collectives, const Tensor& shard,
                                const device::Event& free) {
  UnitState& unit = units_[u];
  auto& group = *unit.group;
  // Codes that are about to be kept replace those of the last gather from them.
  if (group.quantized_secondary) collectives.stream().wait(unit.ready);
  if (unit.has_secondary && group.quantized_secondary)
    return group.quantized_secondary->all_gather_codes(unit.parameters, shard, free);
  if (!unit.has_secondary && group.keeps_codes)
    return group.quantized_gather->all_gather_codes(unit.parameters, shard, free);
  if (!unit.has_secondary && group.quantized_gather)
    return group.quantized_gather->all_gather(unit.parameters, shard, free);
  if (!unit.has_secondary && unit.dtype == DType::e4m3) {
    take_others(u, collectives.stream());
    return group.fp8_gather->all_gather(u, {unit.parameters, unit.others}, shard, free);
  }
  return collectives.all_gather(as_sent(unit.parameters), as_sent(shard), free);
}

/// Returns the elements of UnitState::others.
std::int64_t Fsdp::others_numel(std::size_t u) const {
  const UnitState& unit = units_[u];
  return unit.dtype == DType::e4m3 ? unit.group->fp8_gather->others_numel(u) : 0;
}

void Fsdp::take_others(std::size_t u, device::Stream& stream) {
  UnitState& unit = units_[u];
  const auto numel = others_numel(u);
  if (numel == 0) return;
  const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
  const auto& slot = unit.group->other_slots->acquire(u, numel);
  unit.others = slot.buffer.tensor(compute_dtype_, {numel});
  stream.wait(slot.free_after);
}

/// A unit with a secondary shard keeps them until it has none.
void Fsdp::release_others(std::size_t u) {
  UnitState& unit = units_[u];
  if (!unit.others) return;
  if (poison_) device::set_bytes(compute_, unit.others, device::nan_bytes);
  unit.group->other_slots->release(u, compute_.record());
  unit.others = {};
}

/// Copies a unit's weight shard from the host once `to` is free.
device::Event Fsdp::upload_weights(std::size_t u, const Tensor& to, const device::Event& free) {
  copies_->to_device.wait(free);
  return device::upload_async(copies_->to_device, to, state_.weights(u).on_host.data());
}

/// Gathers what the pass enters after these units, so that it arrives while they compute, up to the
/// end of a pipeline stage's chunk. The choice depends only on the position in the pass.
void Fsdp::prefetch(UnitRange units, Pass pass) {
  // Recomputation runs forward through units whose successors are already done.
  if (pass == Pass::recompute) return;
  const bool backward = pass == Pass::backward;
  std::int64_t bytes = 0;
  for (int ahead = 0; ahead < prefetch_ahead_; ++ahead) {
    if (backward ? units.first == 0 : units.last == units_.size()) return;
    const auto next = layout_.units()[backward ? units.first - 1 : units.last].modules.front();
    if (backward && next < backward_end_) return;
    units = units_of_module_[index(next)];
    if (!holds_any(units)) return;
    for_each_held(units, [&](std::size_t u) { bytes += gathered_bytes(u); });
    if (prefetch_limit_ > 0 && bytes > prefetch_limit_) return;
    for_each_held(units, [&](std::size_t u) { unshard(u, pass); });
  }
}

bool Fsdp::holds_any(UnitRange range) const {
  bool any = false;
  for (auto u = range.first; u < range.last; ++u) any |= units_[u].held;
  return any;
}

/// Returns the end of the leading units that stay gathered between micro-batches: all if they are
/// gathered at the end of a forward pass and nothing is reduced before the last micro-batch;
/// otherwise as many as are gathered at a time, one in use and the others within the prefetch
/// limit.
std::size_t Fsdp::units_between_micro_batches() {
  if (reshard_rule_ == Reshard::after_backward && reduce_rule_ == Reduce::last)
    return units_.size();
  std::size_t end = 0;
  std::int64_t bytes = 0, least = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i <= prefetch_ahead_ && end < units_.size();) {
    const auto next = units_of_module_[index(layout_.units()[end].modules.front())];
    if (holds_any(next)) {
      std::int64_t own = 0;
      for_each_held(next, [&](std::size_t u) { own += gathered_bytes(u); });
      bytes += own;
      least = std::min(least, own);
      if (prefetch_limit_ > 0 && bytes - least > prefetch_limit_) break;
      ++i;
    }
    end = next.last;
  }
  return end;
}

/// Returns true if a unit stays gathered when the pass leaves it.
bool Fsdp::stays_unsharded(std::size_t u, Pass pass) const {
  if (pass == Pass::forward) return reshard_rule_ == Reshard::after_backward;
  if (pass == Pass::backward) return u < num_persistent_units_ && !micro_batch_.last();
  return pass == Pass::recompute;
}

std::int64_t Fsdp::gathered_bytes(std::size_t u) const {
  const UnitState& unit = units_[u];
  if (unit.stays_gathered) return 0;
  return layout_.units()[u].padded_numel * size_of(unit.dtype) +
         others_numel(u) * size_of(compute_dtype_);
}

void Fsdp::reshard(std::size_t u, Pass pass) {
  UnitState& unit = units_[u];
  unit.gathered = false;
  if (unit.stays_gathered) return;
  const auto [axis, slots, shard] = source_of(u);
  const bool keeps = pass == Pass::forward && unit.group->secondary != nullptr;
  if (keeps && !unit.has_secondary) keep_secondary_shard(u);
  if (poison_ && (axis.size == 1 || !axis.collectives->shares_gathered()))
    device::set_bytes(compute_, unit.parameters, device::nan_bytes);
  if (poison_ && unit.has_secondary && !keeps)
    device::set_bytes(compute_, shard, device::nan_bytes);
  slots.release(u, compute_.record());
  if (!keeps) release_others(u);
  unit.has_secondary = keeps;
}

Tensor Fsdp::secondary_shard(const UnitState& unit) const {
  const auto dtype = unit.group->quantized_secondary ? DType::i8 : unit.dtype;
  return unit.secondary.tensor(dtype, {unit.secondary.bytes() / size_of(dtype)});
}

/// Copies this rank's secondary shard from the codes of the unit that has just been gathered.
void Fsdp::keep_secondary_codes(std::size_t u) {
  UnitState& unit = units_[u];
  const auto& group = *unit.group;
  const std::int64_t parts = group.shard.size / group.secondary->size;
  const auto numel = layout_.units()[u].shard_numel;
  const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
  auto& gather = *unit.group->quantized_gather;
  if (!unit.secondary) unit.secondary = device::Buffer(gather.kept_bytes(parts, numel));
  unit.ready = gather.keep_parts(secondary_shard(unit), group.secondary->rank * parts, numel);
}

/// Copies this rank's secondary shard from the gathered unit, unless codes are kept.
void Fsdp::keep_secondary_shard(std::size_t u) {
  UnitState& unit = units_[u];
  const auto& group = *unit.group->secondary;
  if (unit.group->quantized_secondary) return group.collectives->stream().wait(unit.ready);
  const auto numel = unit.parameters.numel() / group.size;
  const device::ScopedMemoryTag use(device::MemoryUse::gathered_weights);
  if (!unit.secondary) unit.secondary = device::Buffer(numel * size_of(unit.dtype));
  device::copy_bytes(compute_, secondary_shard(unit),
                     unit.parameters.slice(group.rank * numel, numel));
  group.collectives->stream().wait(compute_.record());
}

Tensor Fsdp::parameter(model::ParameterId id) {
  const UnitState& unit = units_[layout_.place(id).unit];
  expects(unit.entered > 0, "{} is read outside of its module", layout_.table()[id].name);
  if (unit.dtype == DType::e4m3)
    return unit.group->fp8_gather->parameter(id, {unit.parameters, unit.others});
  return view(id, unit.parameters);
}

Tensor Fsdp::scales(model::ParameterId id) {
  const UnitState& unit = units_[layout_.place(id).unit];
  return unit.dtype == DType::e4m3 ? unit.group->fp8_gather->scales(id) : Tensor();
}

Tensor Fsdp::view(model::ParameterId id, const Tensor& unsharded) const {
  const auto& shape = layout_.local_shape(id);
  return unsharded.slice(layout_.place(id).offset, numel(shape)).reshape(shape);
}

void Fsdp::on_master_weights_loaded() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (const auto& copy = state_.weights(u).copy)
      ops::copy(state_.stream(), copy, state_.masters().shards[u]);
    on_master_weights_updated(u);
  }
  // The host may rewrite masters only after their copies to the device are done.
  if (copies_)
    for (const auto& unit : units_) state_.stream().wait(unit.weights_here);
}

void Fsdp::on_master_weights_updated(std::size_t u) {
  UnitState& unit = units_[u];
  if (unit.group->fp8_gather) unit.group->fp8_gather->on_weights_changed(u);
  const bool stays_on_device = layout_.units()[u].frozen && state_.weights(u).shard;
  if (!copies_ || stays_on_device)
    return unit.group->shard.collectives->stream().wait(compute_.record());
  if (const auto& shard = state_.weights(u).shard)
    unit.weights_here = upload_weights(u, shard, state_.stream().record());
  else
    copies_->to_device.wait(state_.stream().record());
}

QuantizedTraffic Fsdp::take_quantization_squares() {
  QuantizedTraffic taken;
  for (auto& group : groups_) {
    if (group.quantized_gather && !group.keeps_codes)
      taken.weights += group.quantized_gather->take_squares();
    if (group.quantized_reductions) taken.gradients += group.quantized_reductions->take_squares();
    if (group.quantized_replicas) taken.replicas += group.quantized_replicas->take_squares();
  }
  return taken;
}

double Fsdp::seconds_exposed_by_copies() const {
  return copies_ ? copies_->seconds_blocked() : 0;
}

}  // namespace llamesh::sharding
