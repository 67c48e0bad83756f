#pragma once

#include "comm/topology.hpp"

namespace llamesh::train {

/// Sets the number of compute threads of this rank and returns it. 0: the cores that this process
/// may use, divided among the ranks of its machine that may use the same ones. Collective.
int set_threads(int requested, const comm::Communicator& world);

}  // namespace llamesh::train
