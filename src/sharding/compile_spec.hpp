#pragma once

#include <string>
#include <string_view>

#include "sharding/shard_layout.hpp"
#include "sharding/sharding_options.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::sharding {

/// A spec compiled for a mesh.
struct CompiledSpec {
  Placements placements;
  /// `whole` if the mesh has no `tensor` axis, or no layer is split along it.
  ResidualLayout residual;
};

/// Compiles a spec for a model and a mesh. A weight is sharded along the data axes named on any dim
/// and split along `tensor` on the dim that names it; a stack of experts is split along `expert` on
/// dim 0. A weight without an entry is replicated on every rank. Outputs must match what the
/// weights imply. The residual layout comes from the outputs in the residual stream, else from the
/// embedding's split, else from `residual`.
///
/// Throws a one-line user error that quotes the conflicting spec lines for anything impossible:
/// unknown names and axes, axes that the mesh lacks, wrong dim counts, contradictions. Pure.
CompiledSpec compile(const Spec& spec, const model::ParameterTable& table,
                     const comm::ParallelDims& dims,
                     ResidualLayout residual = ResidualLayout::sequence);

/// Throws a user error if a compiled spec splits along `tensor` in a way that training does not
/// support, or not along `expert`: it accepts only the splits of tensor_parallel_placements().
/// Pure.
void check_implemented(const ShardLayout& layout, ResidualLayout residual);

/// Returns the spec that a strategy is: all weights are sharded along `shard`, and divided along
/// `tensor` by their roles, with this residual stream. Experts are split along `expert`; all other
/// weights are sharded along it too, except in no_shard. Pure.
Spec builtin_spec(const model::ParameterTable& table, const comm::ParallelDims& dims,
                  ResidualLayout residual, Strategy strategy = Strategy::full_shard);

/// Describes compiled placements for --print-spec, one line per weight: name, shape, shape per
/// rank, the axes that divide it, and the bytes of fp32 weight per rank. `name` is the spec's name.
/// When folded, consecutive equal decoder layers appear once.
std::string describe_spec(const ShardLayout& layout, std::string_view name, ResidualLayout residual,
                          Layers layers);

/// Returns a line about weights that every rank holds in full although there are several ranks, or
/// nothing.
std::string describe_whole(const ShardLayout& layout);

}  // namespace llamesh::sharding
