#pragma once

#include "comm/mesh/topology.hpp"

namespace llamesh::train {

/// Sets this rank's number of compute threads and returns it. 0: the cores available to this
/// process, divided among the ranks on its machine that may use the same ones. Collective.
int set_threads(int requested, const comm::Communicator& world);

}  // namespace llamesh::train
