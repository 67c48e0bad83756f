#pragma once

#include "comm/mesh/topology.hpp"
#include "train/setup/run_inputs.hpp"

/// Pipeline stages for a run that has lost nodes.
namespace llamesh::train {

/// Returns true if `ranks` are too few for a single pipeline.
bool has_too_many_stages(const Inputs& in, int ranks);

/// Returns the inputs of a run that goes on with too few ranks for its stages: with as many stages
/// as fit, whose layers are then divided automatically. If no number fits, the inputs as they are.
Inputs with_fewer_stages(const Inputs& in, const comm::Topology& topology);

}  // namespace llamesh::train
