#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/collective_log.hpp"
#include "core/box.hpp"
#include "sharding/shard_layout.hpp"
#include "train/rank_classes.hpp"

/// What must hold on every mesh. Each check throws an error of one line (exit 70) with the first
/// violation that it finds.
namespace llamesh::train {

/// Elements [begin, begin + count) of a part of an array, as some rank has or writes them.
struct RankRange {
  int rank;
  int part;
  std::int64_t begin;
  std::int64_t count;
};

/// The parts are the array, and the ranges have each of its elements once. `what` names the array
/// and `verb` what ranks do with it: "owned".
void check_each_once(std::string_view what, std::string_view verb, const Shape& array,
                     const std::vector<Box>& parts, std::vector<RankRange> ranges);

/// Of every parameter, the ranks that hold the same copy of the state own each element once.
void check_owned_once(const sharding::ShardLayout& layout);

/// What all ranks write into a checkpoint.
struct CheckpointWrites {
  std::int64_t elements = 0;
  std::int64_t hyperslabs = 0;
};

/// All ranks together write each element of each dataset once, for so many groups of datasets: the
/// model and the optimizer's moments.
CheckpointWrites check_written_once(const sharding::ShardLayout& layout, std::size_t groups);

/// The groups that were made, in one order on every rank, divide the ranks among them, and within
/// each its members call the same collectives in one order. Nor do groups wait for each other in a
/// circle: the calls come to an end also where each blocks its rank until all members have made it.
/// `by_class` is what a rank of each class calls.
void check_groups_agree(const comm::ParallelDims& dims, const RankClasses& classes,
                        const std::vector<comm::CollectiveLog>& by_class);

}  // namespace llamesh::train
