#pragma once

#include <vector>

#include "comm/parallel_dims.hpp"
#include "core/box.hpp"
#include "model/parameters.hpp"

namespace llamesh::sharding {

/// Where a parameter is stored on a mesh. Each of its dims is whole or cut into equal parts along
/// some axes; a rank's part of it is flat-sharded, with the other parameters of its unit, along
/// `sharded`; along all other axes of the mesh the ranks hold the same (replicas).
struct Placement {
  std::vector<comm::AxisSet> cut;  ///< by dim; no axes: whole
  comm::AxisSet sharded;
  /// The axes, of those along which the ranks hold the same, along which each rank computes a part
  /// of the gradient only, from the same data; the gradient is the sum.
  comm::AxisSet partial = {};

  /// All axes along which it is cut.
  comm::AxisSet cut_axes() const;
  /// The axes along which the ranks hold the same.
  comm::AxisSet replicated(const comm::ParallelDims& dims) const {
    return dims.all() & ~sharded & ~cut_axes();
  }
  bool operator==(const Placement&) const = default;
};

/// By ParameterId.
using Placements = std::vector<Placement>;

/// Those of every strategy: each parameter is whole, and sharded along the axis `shard`. Pure.
Placements whole_and_sharded(const model::ParameterTable& table, const comm::ParallelDims& dims);

/// How many parts a placement cuts its parameter into. Pure.
int parts(const Placement& placement, const comm::ParallelDims& dims);

/// The number of the part that `rank` holds, 0 to parts() - 1. Pure.
int part_of(const Placement& placement, const comm::ParallelDims& dims, int rank);

/// A part of a parameter; parts are numbered row-major over the cut dims. Throws a user error,
/// which names the parameter, where they are not equal. Pure.
Box part(const Placement& placement, const comm::ParallelDims& dims,
         const model::Parameter& parameter, int number);

}  // namespace llamesh::sharding
