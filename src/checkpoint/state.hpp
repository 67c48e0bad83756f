#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "core/tensor.hpp"
#include "sharding/shard_layout.hpp"

namespace llamesh::checkpoint {

/// A group of the checkpoint, e.g. "/model" or "/optimizer/exp_avg", and this rank's shards of it:
/// for each unit of the layout (shard_numel) fp32, dense, in host memory.
struct StateGroup {
  std::string path;
  std::vector<Tensor> shards;
};

/// This rank's part of all that a checkpoint holds. Views: what they show stays alive and in place.
struct State {
  const sharding::ShardLayout& layout;
  int shard_rank;
  std::vector<StateGroup> groups;
};

/// Elements [begin, begin + values.size()) of a dataset and where they lie on this rank.
struct Transfer {
  std::size_t dataset;  ///< index into datasets_of()
  std::int64_t begin;
  std::span<float> values;
};

/// The datasets of a state, group by group in the order of the parameter table. The same on every
/// rank.
std::vector<DatasetEntry> datasets_of(const State& state);

/// All that this rank holds, without padding.
std::vector<Transfer> transfers_of(const State& state);

/// Part `part` of `parts` equal ones: replicas hold the same transfers and each writes its part.
std::vector<Transfer> part_of(const std::vector<Transfer>& transfers, int part, int parts);

/// Elements hashed together, and moved in one call: 4 MiB of them.
inline constexpr std::int64_t segment_numel = std::int64_t{1} << 20U;

}  // namespace llamesh::checkpoint
