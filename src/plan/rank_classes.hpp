#pragma once

#include <vector>

#include "train/run/setup.hpp"

namespace llamesh::plan {

/// Classes of ranks whose step calls the same collectives and takes the same memory (on a CPU, up
/// to a few bytes for sums of squares). Ranks in a class may still hold different parts of a
/// parameter. With Muon they also send somewhat different numbers of bytes to its matrices' owners.
struct RankClasses {
  std::vector<int> of_rank;  ///< rank -> class
  std::vector<int> first;    ///< class -> its lowest rank
};

/// Classifies ranks by everything that their collectives and memory depend on: the number of nodes
/// in each of their groups, and the pieces of partial sums that they must complete
/// (Placement::partial). All else in a ShardedState, an Fsdp and a model has the same size on every
/// rank. Pure.
RankClasses rank_classes(const train::Setup& setup);

/// Returns a separate class for each rank. Pure.
RankClasses every_rank(const train::Setup& setup);

/// Returns candidates for the rank with peak memory: among ranks with equal node counts per group,
/// the one with the most elements to complete. Pure.
std::vector<int> peak_memory_candidates(const train::Setup& setup);

}  // namespace llamesh::plan
