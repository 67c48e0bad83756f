#include "sharding/sharded_state.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/philox.hpp"
#include "device/device.hpp"

namespace llamesh::sharding {

using device::MemoryKind;

ShardedState::ShardedState(const ShardLayout& layout, comm::DeviceMesh& mesh,
                           const PrecisionOptions& precision,
                           const std::vector<std::string>& moments)
    : layout_(layout),
      rank_(mesh.rank()),
      masters_{"weights", MemoryKind::device, std::vector<Tensor>(layout.units().size())},
      gradients_{"gradients", MemoryKind::device, std::vector<Tensor>(layout.units().size())},
      gathered_masters_(layout.units().size()) {
  group_units();
  for (auto& group : groups_) place(group, mesh, precision.parameters);
  const device::AllocatesFor use(device::MemoryUse::optimizer);
  for (const auto& name : moments) {
    buffers_.emplace_back(layout.shard_numel() * size_of(DType::f32));
    moments_.push_back({name, MemoryKind::device, {}});
    std::int64_t at = 0;
    for (const auto& unit : layout.units()) {
      moments_.back().shards.push_back(
          buffers_.back().tensor(DType::f32, {unit.shard_numel}, at * size_of(DType::f32)));
      at += unit.shard_numel;
    }
  }
}

void ShardedState::group_units() {
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const auto& unit = layout_.units()[u];
    auto group = std::ranges::find_if(groups_, [&](const Group& g) {
      return g.sharded == unit.sharded && g.replicas == unit.replicas;
    });
    if (group == groups_.end())
      group = groups_.insert(group, {{}, unit.sharded, unit.replicas, {}});
    group->units.push_back(u);
  }
}

/// Gives the units of a group their master and gradient shards, all of them out of one buffer each.
void ShardedState::place(Group& group, comm::DeviceMesh& mesh, DType compute_dtype) {
  auto& shard = mesh.along(group.sharded);
  auto& replicas = mesh.along(group.replicas);
  std::int64_t numel = 0;
  for (const auto u : group.units) numel += layout_.units()[u].shard_numel;
  const auto bytes = numel * size_of(DType::f32);
  const bool gathered = compute_dtype == DType::f32 && shard.collectives->shares_gathered();
  const auto allocate = [&](device::MemoryUse use, auto make) -> const device::Buffer& {
    const device::AllocatesFor allocates(use);
    return buffers_.emplace_back(make());
  };
  const auto gradients = allocate(device::MemoryUse::gradients, [&] {
                           return replicas.collectives->allocate_symmetric(bytes);
                         }).tensor(DType::f32, {numel});
  group.gradients = gradients;
  const auto& masters = allocate(device::MemoryUse::weights, [&] {
    return gathered ? shard.collectives->allocate_gathered(bytes) : device::Buffer(bytes);
  });
  std::int64_t offset = 0;  // in elements of one rank
  for (const auto u : group.units) {
    const auto& unit = layout_.units()[u];
    gradients_.shards[u] = gradients.slice(offset, unit.shard_numel);
    const std::int64_t at = offset * size_of(DType::f32);
    if (gathered) {
      gathered_masters_[u] = masters.tensor(DType::f32, {unit.padded_numel}, at * shard.size);
      masters_.shards[u] =
          gathered_masters_[u].slice(shard.rank * unit.shard_numel, unit.shard_numel);
    } else {
      masters_.shards[u] = masters.tensor(DType::f32, {unit.shard_numel}, at);
    }
    offset += unit.shard_numel;
  }
}

void ShardedState::initialize(std::uint64_t seed, float stddev) {
  std::vector<float> values;  // made on the host, so that every device starts from the same ones
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    for (const Piece& piece : layout_.pieces(u, rank_)) {
      const auto& parameter = layout_.table()[piece.parameter];
      values.assign(static_cast<std::size_t>(piece.count), 1.0F);
      if (parameter.initial != model::Initial::ones)
        for_each_run(parameter.shape, layout_.range(piece, rank_),
                     [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
                       fill_normal(values.data() + at, begin, count, seed, parameter.name, stddev);
                     });
      device::upload(device::compute_stream(), masters_.shards[u].slice(piece.offset, piece.count),
                     values.data());
    }
  }
}

}  // namespace llamesh::sharding
