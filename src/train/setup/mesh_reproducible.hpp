#pragma once

#include <string>

#include "comm/mesh/parallel_dims.hpp"
#include "sharding/shard_layout.hpp"
#include "train/setup/run_inputs.hpp"

/// Checks for train.reproducible: mesh. The gradients for a step's sequences add up as a balanced
/// binary tree over their numbers: over the ranks in a shard group, over micro-batches and over
/// replicas. Each has neighboring sequences, a power of two.
namespace llamesh::train {

/// Throws a user error that names what has no fixed order yet. `in` has the resolved global batch.
void check_mesh_reproducible(const Inputs& in, const comm::ParallelDims& mesh);

/// Describes what a run's bits depend on beside its other inputs: ops::arithmetic(), and with
/// `mesh` the ranks that compute each sequence together, and how they divide its losses.
std::string arithmetic_of(const Inputs& in);

/// Returns how many neighboring data ranks have neighboring sequences: those that a gradient is
/// summed over before its micro-batches are. Before these come the parts of each sequence, if
/// context ranks divide it. Throws a user error if units differ in that.
int ranks_that_reduce_first(const Inputs& in, const sharding::ShardLayout& layout);

}  // namespace llamesh::train
