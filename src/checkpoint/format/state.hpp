#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.hpp"
#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "sharding/shard_values.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::checkpoint {

/// Parameters that a group has, and the ranks that hold them.
struct GroupContents {
  bool frozen = false;                   ///< frozen parameters, or else trained ones
  sharding::HasParameter has = nullptr;  ///< only these of them; null: all
  comm::AxisSet apart = {};  ///< axes whose ranks each have one of their own; none: alike in all
  int replica = 0;           ///< among those

  bool contain(const model::Parameter& parameter) const {
    return parameter.frozen == frozen && (!has || has(parameter));
  }
  /// Returns true if `rank` has shards of it.
  bool is_held(const comm::ParallelDims& dims, int rank) const {
    return dims.rank_in_group(apart, rank) == replica;
  }
};

/// A group of the checkpoint, e.g. "/model" or "/optimizer/exp_avg", and this rank's shards of it:
/// for each unit of its parameters (shard_numel), dense, in fp32 or bf16. Checkpoints store fp32:
/// widening bf16 is exact, and reading into bf16 rounds to nearest even. Two groups may have the
/// same path, one for trained and one for frozen parameters. Those of other replicas have no
/// shards.
struct StateGroup {
  std::string path;
  std::vector<Tensor> shards;
  device::MemoryKind memory = device::MemoryKind::device;
  GroupContents contents = {};
  std::vector<std::int64_t> gaps = {};  ///< as in ShardedTensor
};

/// This rank's part of all that a checkpoint holds. Views: the tensors must outlive it.
struct State {
  /// Returns this state with only the groups that have this path; there must be one.
  State only(std::string_view path) const;
  /// Returns this state with only the groups of trained parameters, or of frozen ones; possibly
  /// none.
  State trained() const { return only_groups(false); }
  State frozen() const { return only_groups(true); }
  /// Replicas whose groups a checkpoint has.
  struct Replicas {
    int apart;        ///< that trained apart
    int with_errors;  ///< that kept gradient errors
  };
  /// Returns what this rank reads from a checkpoint: of its own replica's groups those that the
  /// checkpoint has, by the names of those from which it continues. Errors are parts of one sum, so
  /// only as many replicas continue with them.
  State from_replicas(Replicas saved) const;

  const sharding::ShardLayout& layout;
  int rank;  ///< in the world
  std::vector<StateGroup> groups;

 private:
  State only_groups(bool of_frozen) const;
};

/// The weights, the moments, what replicas that train apart share, and gradient errors.
State state_of(const sharding::ShardedState& state);
/// The weights with which this rank computes.
State weights_of(const sharding::ShardedState& state);

/// Elements of a dataset and their memory on this rank.
struct ShardIo {
  std::size_t dataset;  ///< index into datasets_of()
  std::size_t group;    ///< index into State::groups
  model::ParameterId parameter;
  int part;            ///< of the dataset: DatasetEntry::parts
  std::int64_t begin;  ///< elements [begin, begin + values.numel()) of the part
  sharding::ShardValues values;

  std::int64_t count() const { return values.numel(); }
};

/// The datasets of a state, group by group in the order of the parameter table, with their parts
/// and no segments. The same on every rank.
std::vector<DatasetEntry> datasets_of(const State& state);

/// Elements [begin, begin + count) of a part of a parameter, in one of the groups of a checkpoint,
/// and the place of the first one in a rank's shard of a unit.
struct ShardSlice {
  std::size_t group;
  std::size_t unit;
  model::ParameterId parameter;
  int part;
  std::int64_t begin;
  std::int64_t count;
  std::int64_t offset;
};

/// Contents of a checkpoint, beside the weights that are trained.
struct Contents {
  std::vector<sharding::Moment> moments;
  std::vector<sharding::Moment> outer;  ///< shared by replicas that train apart; empty: none do
  bool gradient_errors;
  bool frozen;
};
/// Returns the groups of such a checkpoint.
std::vector<GroupContents> groups_of(const Contents& contents, const sharding::ShardLayout& layout);

/// Returns everything that a rank holds in `groups`, without padding. Pure.
std::vector<ShardSlice> held_by(const sharding::ShardLayout& layout,
                                const std::vector<GroupContents>& groups, int rank);

/// held_by(), one row per set of axes along which ranks hold copies (AxisSet::to_ulong()).
using HeldRows = std::map<unsigned long, std::vector<ShardSlice>>;
HeldRows held_rows(const sharding::ShardLayout& layout, const std::vector<GroupContents>& groups,
                   int rank);

/// Returns the part of its rows that a rank writes, so that together the ranks write every element
/// once. Pure.
std::vector<ShardSlice> written_of(const HeldRows& rows, const comm::ParallelDims& dims, int rank);
inline std::vector<ShardSlice> written_by(const sharding::ShardLayout& layout,
                                          const std::vector<GroupContents>& groups, int rank) {
  return written_of(held_rows(layout, groups, rank), layout.dims(), rank);
}

/// Returns the elements of its parameter that a transfer covers.
BoxRange range_of(const ShardIo& transfer, const State& state);

/// held_by() and written_by() of this rank, with their memory.
std::vector<ShardIo> transfers_of(const State& state);
std::vector<ShardIo> transfers_to_write(const State& state);

/// Elements hashed together, and moved in one call: 4 MiB of them.
inline constexpr std::int64_t segment_numel = std::int64_t{1} << 20U;

/// Cuts a range of `count` elements into what is hashed together: visit(at, n).
template <class Visit>
void for_each_segment(std::int64_t count, Visit visit) {
  for (std::int64_t at = 0; at < count; at += segment_numel)
    visit(at, std::min(segment_numel, count - at));
}

}  // namespace llamesh::checkpoint
