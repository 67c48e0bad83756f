#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::checkpoint {

/// A group of the checkpoint, e.g. "/model" or "/optimizer/exp_avg", and this rank's shards of it:
/// for each unit of the layout (shard_numel) fp32, dense.
struct StateGroup {
  std::string path;
  std::vector<Tensor> shards;
  device::MemoryKind memory = device::MemoryKind::device;
};

/// This rank's part of all that a checkpoint holds. Views: the tensors must outlive it.
struct State {
  const sharding::ShardLayout& layout;
  int rank;  ///< in the world
  std::vector<StateGroup> groups;
};

/// The master weights and the moments.
State state_of(const sharding::ShardedState& state);

/// Elements of a dataset and their memory on this rank.
struct Transfer {
  std::size_t dataset;  ///< index into datasets_of()
  int part;             ///< of the dataset: DatasetEntry::parts
  std::int64_t begin;   ///< elements [begin, begin + values.numel()) of the part
  Tensor values;        ///< (n) fp32
  device::MemoryKind memory;

  std::int64_t count() const { return values.numel(); }
};

/// The datasets of a state, group by group in the order of the parameter table, with their parts
/// and no segments. The same on every rank.
std::vector<DatasetEntry> datasets_of(const State& state);

/// All that this rank holds, without padding.
std::vector<Transfer> transfers_of(const State& state);

/// What of it this rank writes: each replica writes its part of what all of them hold, so that
/// together the ranks write every element once.
std::vector<Transfer> transfers_to_write(const State& state);

/// Elements hashed together, and moved in one call: 4 MiB of them.
inline constexpr std::int64_t segment_numel = std::int64_t{1} << 20U;

}  // namespace llamesh::checkpoint
