#include "sharding/sharded_state.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "core/philox.hpp"
#include "device/device.hpp"
#include "sharding/shard_values.hpp"

namespace llamesh::sharding {

using device::MemoryKind;

ShardedState::ShardedState(const ShardLayout& layout, comm::DeviceMesh& mesh,
                           const PrecisionOptions& precision, const std::vector<Moment>& moments,
                           const ShardingOptions& sharding, const std::vector<Moment>& outer)
    : layout_(layout),
      rank_(mesh.rank()),
      offload_(sharding.offload),
      compute_dtype_(precision.parameters),
      keeps_copies_(offload_ == Offload::none && precision.parameters != DType::f32 &&
                    sharding.keep_bf16_weights == KeepBf16Weights::yes),
      quantizes_within_node_(sharding.gather != GatherDType::automatic &&
                             sharding.gather_within_node),
      weights_(layout.units().size()) {
  const auto memory = offload_ == Offload::none ? MemoryKind::device : MemoryKind::host;
  const std::vector<Tensor> shards(layout.units().size());
  masters_ = {"weights", memory, shards};
  gradients_ = {"gradients", memory, shards};
  frozen_ = {"frozen weights", offload_ == Offload::all ? MemoryKind::host : MemoryKind::device,
             shards};
  group_units();
  for (auto& group : groups_)
    group.frozen ? place_frozen(group, mesh, group.dtype(precision.parameters))
                 : place(group, mesh, group.dtype(precision.parameters));
  if (sharding.error_feedback) {
    const device::ScopedMemoryTag use(device::MemoryUse::gradients);
    gradient_errors_ = allocate({"gradient_errors"}, mesh);
  }
  const device::ScopedMemoryTag use(device::MemoryUse::optimizer);
  for (const auto& moment : moments) moments_.push_back(allocate(moment, mesh));
  for (const auto& moment : outer) outer_.push_back(allocate(moment, mesh));
}

Tensor ShardedTensor::of(std::size_t unit, const Piece& piece) const {
  const auto gap = gaps.empty() ? 0 : gaps[model::index(piece.parameter)];
  return shards[unit].slice(piece.offset - gap, piece.count);
}

namespace {

/// Returns the elements of a unit that a tensor with these parameters needs on the rank that needs
/// most, padded: then all ranks allocate the same.
std::int64_t max_numel(const ShardLayout& layout, std::size_t unit, HasParameter has, int rank) {
  const auto& u = layout.units()[unit];
  if (u.frozen || !layout.holds(unit, rank)) return 0;
  if (has == nullptr) return u.shard_numel;
  comm::AxisSet split;
  for (const auto id : u.parameters) split |= layout.placement(id).split_axes();
  const int fullest = layout.dims().group(split, rank).front();  // without padding, if any has it
  std::int64_t most = 0;
  for (const int member : layout.dims().group(u.sharded, fullest)) {
    std::int64_t sum = 0;
    for (const auto& piece : layout.pieces(unit, member))
      if (has(layout.table()[piece.parameter])) sum += piece.count;
    most = std::max(most, sum);
  }
  constexpr std::int64_t multiple = 32;
  return (most + multiple - 1) / multiple * multiple;
}

/// ShardedTensor::gaps.
std::vector<std::int64_t> gaps_of(const ShardLayout& layout, HasParameter has, int rank) {
  if (has == nullptr) return {};
  std::vector<std::int64_t> gaps(layout.table().parameters.size(), 0);
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    std::int64_t held = 0;
    for (const auto& piece : layout.pieces(unit, rank)) {
      gaps[model::index(piece.parameter)] = piece.offset - held;
      if (has(layout.table()[piece.parameter])) held += piece.count;
    }
  }
  return gaps;
}

}  // namespace

/// Collective.
ShardedTensor ShardedState::allocate(const Moment& moment, comm::DeviceMesh& mesh) {
  const auto size = size_of(moment.dtype);
  std::vector<std::int64_t> numels;
  for (std::size_t u = 0; u < layout_.units().size(); ++u)
    numels.push_back(max_numel(layout_, u, moment.has, rank_));
  const auto numel = std::accumulate(numels.begin(), numels.end(), std::int64_t{0});
  const bool is_symmetric = moment.exchanged && memory() == MemoryKind::device && numel > 0;
  buffers_.push_back(
      is_symmetric ? mesh.along(mesh.dims().apart()).collectives->allocate_symmetric(numel * size)
                   : device::Buffer::in(memory(), numel * size));
  ShardedTensor tensor{moment.name, memory(), {}, moment.has, gaps_of(layout_, moment.has, rank_)};
  std::int64_t at = 0;
  for (const auto count : numels) {
    tensor.shards.push_back(count > 0 ? buffers_.back().tensor(moment.dtype, {count}, at * size)
                                      : Tensor());
    at += count;
  }
  return tensor;
}

void ShardedState::drop_gradient_errors() {
  if (!gradient_errors_) return;
  for (const auto& shard : gradient_errors_->shards)
    if (shard) device::set_bytes(stream(), shard, 0);
}

void ShardedState::group_units() {
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const auto& unit = layout_.units()[u];
    auto group = std::ranges::find_if(groups_, [&](const Group& g) {
      return g.sharded == unit.sharded && g.replicas == unit.replicas && g.frozen == unit.frozen &&
             g.fp32 == unit.fp32 && g.codes == unit.codes;
    });
    if (group == groups_.end())
      group = groups_.insert(
          group, {{}, {}, unit.sharded, unit.replicas, unit.frozen, unit.fp32, unit.codes});
    group->units.push_back(u);
    if (layout_.holds(u, rank_)) group->held.push_back(u);
  }
}

/// Allocates shards for a group's units, each kind in one buffer. Collective.
void ShardedState::place(Group& group, comm::DeviceMesh& mesh, DType compute_dtype) {
  auto& shard = mesh.along(group.sharded);
  const bool adds_up = mesh.dims().group_size(group.replicas) > 1;
  auto& replicas = mesh.along(adds_up ? group.replicas : mesh.dims().apart());
  std::int64_t numel = 0;
  for (const auto u : group.held) numel += layout_.units()[u].shard_numel;
  const bool offloaded = memory() == MemoryKind::host;
  const auto in = [&](device::Buffer buffer, DType dtype) {
    buffers_.push_back(std::move(buffer));
    return buffers_.back().tensor(dtype, {numel});
  };
  const auto allocate = [&](DType dtype) {
    return numel == 0 ? Tensor() : in(device::Buffer::in(memory(), numel * size_of(dtype)), dtype);
  };
  {
    const device::ScopedMemoryTag use(device::MemoryUse::gradients);
    group.gradients =
        offloaded || numel == 0
            ? allocate(DType::f32)
            : in(replicas.collectives->allocate_symmetric(numel * size_of(DType::f32)), DType::f32);
  }
  const device::ScopedMemoryTag use(device::MemoryUse::weights);
  const bool keeps_copies = keeps_copies_ && compute_dtype != DType::f32;
  const bool apart = offloaded || keeps_copies;  // masters are separate from the gathered weights
  if (offload_ != Offload::all)
    place_on_device(group, shard, apart ? compute_dtype : DType::f32, compute_dtype);
  const Tensor masters = apart ? allocate(DType::f32) : Tensor();
  const bool casts = offloaded && compute_dtype != DType::f32;
  const Tensor on_host = casts ? allocate(compute_dtype) : masters;
  std::int64_t at = 0;
  for (const auto u : group.held) {
    const auto count = layout_.units()[u].shard_numel;
    gradients_.shards[u] = group.gradients.slice(at, count);
    auto& weights = weights_[u];
    masters_.shards[u] = apart ? masters.slice(at, count) : weights.shard;
    if (offloaded) weights.on_host = on_host.slice(at, count);
    if (casts) weights.copy = weights.on_host;
    if (keeps_copies) weights.copy = weights.shard;
    at += count;
  }
}

/// Allocates the weights of frozen units, in one buffer. Collective.
void ShardedState::place_frozen(Group& group, comm::DeviceMesh& mesh, DType compute_dtype) {
  if (group.codes) return place_codes(group);
  const device::ScopedMemoryTag use(device::MemoryUse::weights);
  const bool on_host = frozen_.memory == MemoryKind::host;
  auto& shard = mesh.along(group.sharded);
  if (!on_host) place_on_device(group, shard, compute_dtype, compute_dtype);
  std::int64_t numel = 0;
  for (const auto u : group.held) numel += layout_.units()[u].shard_numel;
  if (on_host && numel > 0)
    buffers_.push_back(device::Buffer::in(MemoryKind::host, numel * size_of(compute_dtype)));
  std::int64_t at = 0;
  for (const auto u : group.held) {
    auto& weights = weights_[u];
    const auto count = layout_.units()[u].shard_numel;
    if (on_host)
      weights.on_host = buffers_.back().tensor(compute_dtype, {count}, at * size_of(compute_dtype));
    frozen_.shards[u] = on_host ? weights.on_host : weights.shard;
    at += count;
  }
}

/// Allocates codes for frozen units, in one buffer.
void ShardedState::place_codes(const Group& group) {
  const device::ScopedMemoryTag use(device::MemoryUse::weights);
  std::vector<std::int64_t> bytes;
  for (const auto u : group.held)
    bytes.push_back(ops::BlockCodes::part_bytes(layout_.units()[u].shard_numel, *group.codes));
  if (bytes.empty()) return;
  buffers_.push_back(device::Buffer::in(
      frozen_.memory, std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})));
  std::int64_t at = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto u = group.held[i];
    frozen_.shards[u] = buffers_.back().tensor(DType::i8, {bytes[i]}, at);
    auto& weights = weights_[u];
    (frozen_.memory == MemoryKind::host ? weights.on_host : weights.shard) = frozen_.shards[u];
    at += bytes[i];
  }
}

/// Allocates the shards that are gathered. Collective over `shard`.
void ShardedState::place_on_device(Group& group, comm::DeviceMesh::Axis& shard, DType dtype,
                                   DType compute_dtype) {
  std::int64_t numel = 0;
  for (const auto u : group.held) numel += layout_.units()[u].shard_numel;
  const bool gathered = dtype == compute_dtype && shard.collectives->shares_gathered() &&
                        !(quantizes_within_node_ && shard.size > 1);
  group.stays_gathered = gathered;
  if (numel == 0) return;
  const auto bytes = numel * size_of(dtype);
  buffers_.push_back(gathered ? shard.collectives->allocate_gathered(bytes)
                              : device::Buffer(bytes));
  std::int64_t at = 0;  // in bytes per rank
  for (const auto u : group.held) {
    const auto& unit = layout_.units()[u];
    auto& weights = weights_[u];
    if (gathered) {
      weights.gathered = buffers_.back().tensor(dtype, {unit.padded_numel}, at * shard.size);
      weights.shard = weights.gathered.slice(shard.rank * unit.shard_numel, unit.shard_numel);
    } else {
      weights.shard = buffers_.back().tensor(dtype, {unit.shard_numel}, at);
    }
    at += unit.shard_numel * size_of(dtype);
  }
}

namespace {

/// Draws elements [first, first + values.size()) of a parameter that does not start constant.
void draw(std::span<float> values, std::int64_t first, const model::Parameter& parameter,
          std::uint64_t seed, float stddev, std::size_t layers) {
  using enum model::Initial;
  const auto fill = [&](auto fill_by, float width) {
    fill_by(values.data(), first, std::ssize(values), seed, parameter.name, width);
  };
  const auto dim = [&](std::size_t d) { return static_cast<float>(parameter.shape[d]); };
  if (parameter.initial == normal) fill(fill_normal, stddev);
  if (parameter.initial == normal_by_depth)
    fill(fill_normal, stddev / std::sqrt(2.0F * static_cast<float>(layers)));
  if (parameter.initial == normal_by_rank) fill(fill_normal, 1 / dim(0));
  if (parameter.initial == kaiming_uniform) fill(fill_uniform, 1 / std::sqrt(dim(1)));
}

}  // namespace

void ShardedState::initialize(std::uint64_t seed, float stddev, Units units) {
  std::vector<float> values;  // made on the host, so that every device starts from the same values
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    if (units == Units::trained && layout_.units()[u].frozen) continue;
    for (const Piece& piece : layout_.pieces(u, rank_)) {
      const auto& parameter = layout_.table()[piece.parameter];
      const auto constant = model::constant(parameter.initial);
      values.assign(static_cast<std::size_t>(piece.count), constant.value_or(0));
      if (!constant)
        for_each_run(parameter.shape, layout_.range(piece, rank_),
                     [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                       draw(std::span(values).subspan(static_cast<std::size_t>(at),
                                                      static_cast<std::size_t>(count)),
                            begin, parameter, seed, stddev, layout_.table().layers.size());
                     });
      const auto& weights = layout_.units()[u].frozen ? frozen_ : masters_;
      values_of(layout_.units()[u], weights.memory, weights.shards[u])
          .slice(piece.offset, piece.count)
          .upload(values);
    }
  }
}

}  // namespace llamesh::sharding
