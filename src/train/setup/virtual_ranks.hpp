#pragma once

#include <memory>
#include <vector>

#include "model/layers/activations.hpp"
#include "sharding/shard_layout.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// Resolves train.reproducible_tensor. If that is more ranks than the mesh has, returns how these
/// virtual ranks hold the parameters that `real` places on the mesh, in the same units; else null.
/// `chunks` are the layers of all stages. Throws a user error if the run cannot have their bits.
std::unique_ptr<const sharding::ShardLayout> virtual_tensor_layout(
    Inputs& in, const sharding::ShardLayout& real, const std::vector<model::LayerRange>& chunks);

/// Throws a user error if a rank stands for this many virtual ones on a device that cannot add up
/// as they do.
void check_virtual_ranks_fit(const Inputs& in, int virtual_ranks);

}  // namespace llamesh::train
