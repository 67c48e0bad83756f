#pragma once

#include <vector>

#include "train/setup.hpp"

namespace llamesh::train {

/// Ranks of which a step calls the same collectives and takes the same memory (on a CPU but for a
/// few bytes that sums of squares keep). They may differ in what neither depends on: which part of
/// a parameter they hold.
struct RankClasses {
  std::vector<int> of_rank;  ///< by rank: the number of its class
  std::vector<int> first;    ///< by class: its lowest rank
};

/// By what a rank's collectives and memory depend on: on how many nodes each of its groups is, and
/// which pieces of partial sums it has to complete (Placement::partial). All else of a
/// ShardedState, a Fsdp and a model is of the same size on every rank. Pure.
RankClasses rank_classes(const Setup& setup);

/// Each rank is a class of its own. Pure.
RankClasses every_rank(const Setup& setup);

/// Ranks of which one takes the most memory: of those with groups on equally many nodes the one
/// that has the most elements to complete. Pure.
std::vector<int> possibly_fullest_ranks(const Setup& setup);

}  // namespace llamesh::train
