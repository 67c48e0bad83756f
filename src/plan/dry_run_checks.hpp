#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/format/state.hpp"
#include "comm/mesh/collective_log.hpp"
#include "core/box.hpp"
#include "plan/step_plan.hpp"
#include "sharding/shard_layout.hpp"

/// Invariants that must hold on every mesh. Each check throws a one-line error (exit 70) for the
/// first violation that it finds.
namespace llamesh::plan {

/// Elements [begin, begin + count) in an array part, as held or written by a rank.
struct RankRange {
  int rank;
  int part;
  std::int64_t begin;
  std::int64_t count;
};

/// Checks that the parts tile the array, and that the ranges cover each element once. `what` names
/// the array and `verb` the ranks' action: "owned".
void check_each_once(std::string_view what, std::string_view verb, const Shape& array,
                     const std::vector<Box>& parts, std::vector<RankRange> ranges);

/// Checks that in each replica of the state the ranks own each parameter element exactly once.
void check_owned_once(const sharding::ShardLayout& layout);

/// Totals over all ranks' checkpoint writes.
struct CheckpointWrites {
  std::int64_t elements = 0;
  std::int64_t hyperslabs = 0;
};

/// Checks that all ranks together write each element in each dataset once, for these groups of
/// datasets: the model and the optimizer's moments.
CheckpointWrites check_written_once(const sharding::ShardLayout& layout,
                                    const std::vector<checkpoint::GroupContents>& groups);

/// Checks the groups and their collectives. All ranks must create the groups in the same order, and
/// these must partition the ranks; each group's members must call the same collectives in the same
/// order. Groups must not deadlock either: the calls must finish even if each one blocks its rank
/// until all members have made it. `by_class` holds the calls of one rank per class.
void check_groups_agree(const comm::ParallelDims& dims, const RankClasses& classes,
                        const std::vector<comm::CollectiveLog>& by_class);

}  // namespace llamesh::plan
