#pragma once

#include "comm/mesh/device_mesh.hpp"
#include "model/router_balance.hpp"

namespace llamesh::sharding {

/// Returns the ranks whose gradients add up (ParallelDims::gradient_axes()). Borrows the mesh.
/// Collective.
model::DataRanks data_ranks(comm::DeviceMesh& mesh);

}  // namespace llamesh::sharding
