#pragma once

#include <map>
#include <string>

#include "comm/mpi/communicator.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::train {

/// Norms for each trained part (state_parts.hpp).
struct LayerNorms {
  std::map<std::string, double> gradients;
  std::map<std::string, double> weights;  ///< the fp32 ones
};

/// Returns each part's norms over all its elements, the same on every rank. If `replicas` train
/// apart, these are root mean squares over them. Waits for the state's stream. Collective.
LayerNorms layer_norms(const comm::Communicator& world, const sharding::ShardedState& state,
                       int replicas);

}  // namespace llamesh::train
