#pragma once

#include "sharding/shard_layout.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::sharding {

/// What a spec comes to on a mesh.
struct CompiledSpec {
  Placements placements;
  /// Whole where the mesh has no axis `tensor`, or no layer is cut along it.
  ResidualLayout residual;
};

/// Works a spec out for a model and a mesh. A weight is sharded along the data axes that are named
/// on any of its dims, and cut along `tensor` on the dim that names it; a weight without an entry
/// is whole on every rank. Outputs must be what the weights imply; those of the residual stream
/// say how it is laid out, else the embedding's cut does, else `residual`.
///
/// Throws a user error of one line, with the lines of the spec that are at odds, for what cannot be
/// done: unknown names and axes, axes that the mesh lacks, wrong numbers of dims, contradictions.
/// Pure.
CompiledSpec compile(const Spec& spec, const model::ParameterTable& table,
                     const comm::ParallelDims& dims,
                     ResidualLayout residual = ResidualLayout::sequence);

/// Throws a user error where a compiled spec cuts along `tensor` in a way that training cannot: it
/// takes tensor_parallel_placements() only. Pure.
void check_implemented(const ShardLayout& layout, ResidualLayout residual);

/// Returns the spec that every strategy is: all weights are sharded along `shard`, and divided
/// along `tensor` by their roles, with this residual stream. Pure.
Spec builtin_spec(const model::ParameterTable& table, const comm::ParallelDims& dims,
                  ResidualLayout residual);

}  // namespace llamesh::sharding
