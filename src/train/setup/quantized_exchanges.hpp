#pragma once

#include "comm/mesh/topology.hpp"
#include "sharding/shard_layout.hpp"
#include "train/setup/run_inputs.hpp"

/// Numbers that go to other nodes as int8 or int4.
namespace llamesh::train {

bool quantizes_between_nodes(const Inputs& in);

/// Returns the inputs of a run that goes on with one node: without int8 or int4 between nodes, for
/// which a new run would be refused.
Inputs unquantized(Inputs in);

/// Throws a user error if nothing would be quantized, if ranks with copies would not get the same
/// numbers, or if errors cannot be fed back.
void check_quantized_exchanges(const Inputs& in, const sharding::ShardLayout& layout,
                               const comm::Topology& topology);

}  // namespace llamesh::train
