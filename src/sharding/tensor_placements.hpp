#pragma once

#include <cstdint>

#include "model/description/parameters.hpp"
#include "sharding/placement.hpp"
#include "sharding/sharding_options.hpp"

/// What a parameter's role means on a mesh with the axes `tensor` and `expert`: Megatron-LM's
/// division of every layer. All functions are pure.
namespace llamesh::sharding {

/// Splits the tensor axis if it has more ranks than the parameters that ranks may share have blocks
/// (kv heads): the ranks of an inner group then hold the same block. All functions below take the
/// mesh that this returns.
comm::ParallelDims tensor_axis_for(const model::ParameterTable& table,
                                   const comm::ParallelDims& dims);

/// Divides a parameter along `tensor`, as its role says (model::divided_dim()).
void divide(Placement& placement, const model::Parameter& parameter,
            const comm::ParallelDims& dims);

/// Places a parameter that is applied to the residual stream (model::residual_dim()), which the
/// tensor ranks hold in this layout. A rank that holds rows of the stream has a partial gradient;
/// one that holds columns has the elements that belong to these.
void place_along_residual(Placement& placement, const model::Parameter& parameter,
                          const comm::ParallelDims& dims, ResidualLayout residual);

/// Divides every parameter by its role and stacked experts along `expert`, and shards them along
/// `shard`. What `expert` does not divide is sharded along it, too, unless the strategy shards
/// nothing.
Placements tensor_parallel_placements(const model::ParameterTable& table,
                                      const comm::ParallelDims& dims, const TensorOptions& options,
                                      Strategy strategy = Strategy::full_shard);

/// Throws a user error with the numbers if the residual stream of micro-batches of `rows` tokens
/// does not divide among the ranks of the tensor axis, or a norm does not.
void check_residual(const model::ParameterTable& table, const comm::ParallelDims& dims,
                    const TensorOptions& options, std::int64_t rows);

/// A rank's part of a model that only the tensor axis divides, as for inference.
struct TensorShard {
  model::ParameterTable table;  ///< with the shapes of this rank's parts
  std::vector<Box> parts;       ///< of each parameter
};

/// Returns the part of `rank` along the tensor axis of `dims`. Throws a user error if the model
/// cannot be divided. Pure.
TensorShard tensor_shard(const model::ParameterTable& table, const comm::ParallelDims& dims,
                         int rank);

}  // namespace llamesh::sharding
