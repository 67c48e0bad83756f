#pragma once

#include <memory>
#include <vector>

#include "model/layers/activations.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/virtual_ranks.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// Resolves train.reproducible_tensor and reproducible_context, and returns for how many virtual
/// ranks a rank of the mesh stands. Throws a user error if the run cannot have their bits.
sharding::VirtualRanks virtual_ranks_of(Inputs& in, const comm::ParallelDims& mesh);

/// Returns how virtual ranks hold the parameters that `real` places on the mesh, in the same units.
/// `chunks` are the layers of all stages. Throws a user error if these do not divide among them.
std::unique_ptr<const sharding::ShardLayout> virtual_layout_of(
    const Inputs& in, const sharding::ShardLayout& real,
    const std::vector<model::LayerRange>& chunks);

/// Returns the virtual ranks for which a rank of the mesh stands, by turn.
std::vector<int> members_of(const comm::ParallelDims& mesh, const sharding::VirtualRanks& ranks,
                            int rank);

}  // namespace llamesh::train
