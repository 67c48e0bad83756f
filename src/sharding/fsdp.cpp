#include "sharding/fsdp.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>

#include "comm/backoff.hpp"
#include "core/philox.hpp"
#include "device/device.hpp"

namespace llamesh::sharding {

using model::index;
using model::Pass;

namespace {

bool poison_is_wanted() {
  const char* value = std::getenv("LLAMESH_POISON");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

Fsdp::Fsdp(const ShardLayout& layout, comm::DeviceMesh& mesh, const ShardingOptions& sharding,
           const PrecisionOptions& precision)
    : layout_(layout),
      shard_(mesh.axis("shard")),
      replicate_(mesh.axis("replicate")),
      reshard_rule_(reshard_of(sharding.strategy)),
      prefetch_ahead_(sharding.prefetch),
      compute_dtype_(precision.parameters),
      reduce_dtype_(precision.reduce),
      poison_(poison_is_wanted()),
      masters_are_gathered_(precision.parameters == DType::f32 &&
                            shard_.collectives->shares_gathered()),
      unit_of_module_(layout.table().modules.size(), -1),
      index_in_unit_(layout.table().parameters.size()),
      gradient_buffer_(
          replicate_.collectives->allocate_symmetric(layout.shard_numel() * size_of(DType::f32))),
      gathered_slots_(
          [this](std::int64_t numel) {
            return shard_.collectives->allocate_gathered(numel / shard_.size *
                                                         size_of(compute_dtype_));
          },
          layout.units().size(), /*behind=*/0),
      gradient_slots_(
          [this](std::int64_t numel) {
            return shard_.collectives->allocate_symmetric(numel * size_of(reduce_dtype_));
          },
          layout.units().size(), /*behind=*/1),
      units_(layout.units().size()) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (const auto module : layout_.units()[u].modules)
      unit_of_module_[index(module)] = static_cast<int>(u);
    const auto& parameters = layout_.units()[u].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) index_in_unit_[index(parameters[i])] = i;
    units_[u].written.assign(parameters.size(), false);
  }
  place_masters();
}

Fsdp::~Fsdp() {
  // The buffers must outlive the collectives that use them, also when an error unwinds us: then the
  // other ranks may never come, and waits for them are given up first.
  if (std::uncaught_exceptions() > 0) comm::stop_waiting();
  // Neither may kernels still read them: NCCL takes its memory back at once, as cudaFree() does
  // not.
  for (auto* stream :
       {&shard_.collectives->stream(), &replicate_.collectives->stream(), &compute_}) {
    try {
      stream->record().wait();
    } catch (...) {  // the error has been, or is being, reported by whoever waited for the result
    }
  }
}

/// Gives every unit its master and gradient shards, all of them out of one buffer each.
void Fsdp::place_masters() {
  const std::int64_t bytes = layout_.shard_numel() * size_of(DType::f32);
  master_buffer_ =
      masters_are_gathered_ ? shard_.collectives->allocate_gathered(bytes) : device::Buffer(bytes);
  std::int64_t offset = 0;  // in elements of one rank
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const auto& placed = layout_.units()[u];
    UnitState& unit = units_[u];
    unit.gradient = gradients().slice(offset, placed.shard_numel);
    const std::int64_t at = offset * size_of(DType::f32);
    if (masters_are_gathered_) {
      unit.whole = master_buffer_.tensor(DType::f32, {placed.padded_numel}, at * shard_.size);
      unit.master = unit.whole.slice(shard_.rank * placed.shard_numel, placed.shard_numel);
    } else {
      unit.master = master_buffer_.tensor(DType::f32, {placed.shard_numel}, at);
    }
    offset += placed.shard_numel;
  }
}

void Fsdp::initialize(std::uint64_t seed, float stddev) {
  std::vector<float> numbers;  // made on the host, so that every device starts from the same ones
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (const Piece& piece : layout_.pieces(u, shard_.rank)) {
      const auto& parameter = layout_.table()[piece.parameter];
      numbers.assign(static_cast<std::size_t>(piece.count), 1.0F);
      if (parameter.initial != model::Initial::ones)
        fill_normal(numbers.data(), piece.begin, piece.count, seed, parameter.name, stddev);
      device::upload(compute_, units_[u].master.slice(piece.offset, piece.count), numbers.data());
    }
  }
  on_master_weights_updated();
}

void Fsdp::enter(model::ModuleId module, Pass pass) {
  const int u = unit_of_module_[index(module)];
  if (u < 0) return;
  const auto unit = static_cast<std::size_t>(u);
  if (units_[unit].entered++ > 0) return;
  gather(unit);
  prefetch(unit, pass);
  compute_.wait(units_[unit].ready);
}

void Fsdp::leave(model::ModuleId module, Pass pass) {
  const int u = unit_of_module_[index(module)];
  if (u < 0) return;
  const auto unit = static_cast<std::size_t>(u);
  if (--units_[unit].entered > 0) return;
  const bool keep = pass == Pass::recompute ||
                    (pass == Pass::forward && reshard_rule_ == Reshard::after_backward);
  if (pass == Pass::backward) reduce(unit);
  if (!keep) reshard(unit);
}

void Fsdp::gather(std::size_t u) {
  UnitState& unit = units_[u];
  if (unit.gathered) return;
  unit.gathered = true;
  device::Event free;
  if (!masters_are_gathered_) {
    const std::int64_t numel = layout_.units()[u].padded_numel;
    const auto& slot = gathered_slots_.acquire(u, numel);
    unit.whole = slot.buffer.tensor(compute_dtype_, {numel});
    free = slot.free_after;
  }
  shard_.collectives->set_subject(layout_.units()[u].name.c_str());
  unit.ready = shard_.collectives->all_gather(unit.whole, unit.master, free);
}

/// Gathers the unit that the pass enters after `u`, so that it arrives while `u` computes.
void Fsdp::prefetch(std::size_t u, Pass pass) {
  if (prefetch_ahead_ == 0) return;
  switch (pass) {
    case Pass::evaluate:
    case Pass::forward:
      if (u + 1 < units_.size()) gather(u + 1);
      break;
    case Pass::recompute:  // runs forward through units whose successors are done with
      break;
    case Pass::backward:
      if (u > 0) gather(u - 1);
      break;
  }
}

void Fsdp::reshard(std::size_t u) {
  units_[u].gathered = false;
  if (masters_are_gathered_) return;
  if (poison_ && (shard_.size == 1 || !shard_.collectives->shares_gathered()))
    device::set_bytes(compute_, units_[u].whole, device::nan_bytes);
  gathered_slots_.release(u, compute_.record());
}

Tensor Fsdp::parameter(model::ParameterId id) {
  const auto [u, offset] = layout_.place(id);
  const auto& parameter = layout_.table()[id];
  expects(units_[u].entered > 0, "{} is read outside of its module", parameter.name);
  const Tensor flat = units_[u].whole.slice(offset, parameter.numel());
  return parameter.is_matrix() ? flat.reshape({parameter.shape[0], parameter.shape[1]}) : flat;
}

/// Gives the unit a place for its whole gradients, padding zeroed.
void Fsdp::open_gradients(std::size_t u) {
  UnitState& unit = units_[u];
  if (accumulates_in_place()) {
    unit.parts = unit.gradient;
    if (micro_batch_.first) unit.written.assign(unit.written.size(), false);
    return;
  }
  const auto& placed = layout_.units()[u];
  const auto& slot = gradient_slots_.acquire(u, placed.padded_numel);
  compute_.wait(slot.free_after);  // at most one reduction behind us still reads its slot
  unit.parts = slot.buffer.tensor(reduce_dtype_, {placed.padded_numel});
  const Tensor padding = unit.parts.slice(placed.numel, placed.padded_numel - placed.numel);
  if (poison_) device::set_bytes(compute_, unit.parts, device::nan_bytes);
  device::set_bytes(compute_, padding, 0);
  unit.written.assign(unit.written.size(), false);
}

model::GradientSlot Fsdp::gradient(model::ParameterId id) {
  const auto [u, offset] = layout_.place(id);
  UnitState& unit = units_[u];
  const auto& parameter = layout_.table()[id];
  expects(unit.entered > 0, "the gradient of {} is written outside of its module", parameter.name);
  if (!unit.parts) open_gradients(u);
  auto written = unit.written[index_in_unit_[index(id)]];
  const Accumulate how = written ? Accumulate::yes : Accumulate::no;
  written = true;
  const Tensor flat = unit.parts.slice(offset, parameter.numel());
  return {parameter.is_matrix() ? flat.reshape({parameter.shape[0], parameter.shape[1]}) : flat,
          how};
}

/// Sends the unit's gradients on their way: over the shard axis now, over the replicas when the
/// step's last micro-batch is in.
void Fsdp::reduce(std::size_t u) {
  UnitState& unit = units_[u];
  expects(std::all_of(unit.written.begin(), unit.written.end(), [](bool w) { return w; }),
          "{}: a parameter got no gradient", layout_.units()[u].name);
  unit.reduced = compute_.record();
  if (!accumulates_in_place()) {
    shard_.collectives->set_subject(layout_.units()[u].name.c_str());
    unit.reduced = shard_.collectives->reduce_scatter(
        unit.gradient, unit.parts, micro_batch_.first ? Accumulate::no : Accumulate::yes,
        unit.reduced);
    gradient_slots_.release(u, unit.reduced);
  }
  unit.parts = {};
  if (micro_batch_.last && replicate_.size > 1) {
    replicate_.collectives->set_subject(layout_.units()[u].name.c_str());
    unit.reduced = replicate_.collectives->all_reduce(unit.gradient, unit.reduced);
  }
}

void Fsdp::on_master_weights_updated() {
  shard_.collectives->stream().wait(compute_.record());
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
}

Tensor Fsdp::gradients() const {
  return gradient_buffer_.tensor(DType::f32, {layout_.shard_numel()});
}

}  // namespace llamesh::sharding
