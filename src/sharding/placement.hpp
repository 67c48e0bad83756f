#pragma once

#include <vector>

#include "comm/parallel_dims.hpp"
#include "core/box.hpp"
#include "model/parameters.hpp"

namespace llamesh::sharding {

/// A parameter's storage on a mesh. Each dim is whole or split into equal parts along some axes. A
/// rank's part is flat-sharded along `sharded`, together with the unit's other parameters. Along
/// all other mesh axes the ranks hold replicas.
struct Placement {
  std::vector<comm::AxisSet> cut;  ///< per dim; no axes: whole
  comm::AxisSet sharded;
  /// Axes over which the gradient is partial (DTensor's `Partial`): ranks hold the same parameter,
  /// but each computes part of the gradient from the same data. The parts must be summed.
  comm::AxisSet partial = {};

  /// Returns all axes that split it.
  comm::AxisSet cut_axes() const;
  /// Returns the axes along which ranks hold the same data.
  comm::AxisSet replicated(const comm::ParallelDims& dims) const {
    return dims.all() & ~sharded & ~cut_axes();
  }
  bool operator==(const Placement&) const = default;
};

/// Indexed by ParameterId.
using Placements = std::vector<Placement>;

/// Returns every strategy's placements: all parameters whole, sharded along `shard`. Pure.
Placements whole_and_sharded(const model::ParameterTable& table, const comm::ParallelDims& dims);

/// Returns how many parts a placement splits its parameter into. Pure.
int parts(const Placement& placement, const comm::ParallelDims& dims);

/// Returns the part number that `rank` holds, 0 to parts() - 1. Pure.
int part_of(const Placement& placement, const comm::ParallelDims& dims, int rank);

/// Returns a part; parts are numbered row-major over the split dims. Throws a user error that names
/// the parameter if they are not equal. Pure.
Box part(const Placement& placement, const comm::ParallelDims& dims,
         const model::Parameter& parameter, int number);

}  // namespace llamesh::sharding
