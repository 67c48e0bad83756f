#pragma once

#include "comm/mpi/communicator.hpp"
#include "sharding/sharded_state.hpp"
#include "train/records/state_hashes.hpp"

namespace llamesh::train {

/// Hashes the state. Each hash is the sum over the elements of a hash of the tensor's name, the
/// element's number in the whole tensor, and its bits: the same on every mesh, and another one if a
/// single bit differs. Replicas that train apart count each. Waits for the state's stream.
/// Collective.
StateHashes hash_state(const comm::Communicator& world, const sharding::ShardedState& state);

}  // namespace llamesh::train
