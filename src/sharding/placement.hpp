#pragma once

#include <string>
#include <vector>

#include "comm/mesh/parallel_dims.hpp"
#include "core/box.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::sharding {

/// Where a parameter is stored on a mesh. Each dim is whole or split into equal parts along some
/// axes. A rank's part is flat-sharded along `sharded`, together with the other parameters of its
/// unit. Along all other axes the ranks hold copies.
struct Placement {
  std::vector<comm::AxisSet> split;  ///< by dim; no axes: whole
  comm::AxisSet sharded;
  /// Axes that do not divide the data, over which the gradient is partial (DTensor's `Partial`):
  /// the ranks hold copies of the parameter, and their gradients must be summed.
  comm::AxisSet partial = {};
  /// Stages, coordinates along the axis `pipeline`, whose ranks hold it; no other rank does. In the
  /// checkpoint and in sums over the model the first one counts. Empty: all ranks.
  std::vector<int> stages = {};
  /// Axes along which replicas train it apart, so that the ranks hold no copies. ShardLayout sets
  /// them.
  comm::AxisSet apart = {};

  /// All axes that split a dim.
  comm::AxisSet split_axes() const;
  /// Axes along which the ranks hold copies; two stages may, too.
  comm::AxisSet replicated(const comm::ParallelDims& dims) const;
  /// Returns true if `rank` is in the stage that counts.
  bool counts_on(const comm::ParallelDims& dims, int rank) const;
  /// Returns true if `rank` is the first among the ranks that hold the same part of it.
  bool is_first_copy(const comm::ParallelDims& dims, int rank) const;
  bool operator==(const Placement&) const = default;
};

/// Ranks that the parameters of a unit must have in common.
struct UnitAxes {
  comm::AxisSet sharded;
  comm::AxisSet replicas;   ///< ranks along them hold copies, and each has a part of the gradient
  std::vector<int> stages;  ///< Placement::stages
  bool operator==(const UnitAxes&) const = default;
};
/// Gradients add up over the axes that divide the data, except those along which the ranks hold
/// different parts of the parameter. Pure.
inline UnitAxes unit_axes(const Placement& placement, const comm::ParallelDims& dims) {
  const auto divided = placement.sharded | placement.split_axes();
  return {placement.sharded, dims.gradient_axes() & ~divided, placement.stages};
}

/// By ParameterId.
using Placements = std::vector<Placement>;

/// Keeps every parameter whole, and shards it along the axis `shard`. Pure.
Placements whole_and_sharded(const model::ParameterTable& table, const comm::ParallelDims& dims);

/// Formats stages: "stage 0", "stages 0, 3"; empty for all.
std::string stages_text(const std::vector<int>& stages);

/// Returns true if `rank` is in one of these stages (Placement::stages). Pure.
bool is_in_stage(const std::vector<int>& stages, const comm::ParallelDims& dims, int rank);

/// Returns the number of parts that a placement splits its parameter into. Pure.
int parts(const Placement& placement, const comm::ParallelDims& dims);

/// Returns which part `rank` holds, 0 to parts() - 1. Pure.
int part_of(const Placement& placement, const comm::ParallelDims& dims, int rank);

/// Returns a part of a parameter; parts are numbered row-major over the split dims. They are equal,
/// except that the last one of a vocabulary may have fewer rows. Throws a user error that names the
/// parameter if it does not divide. Pure.
Box part(const Placement& placement, const comm::ParallelDims& dims,
         const model::Parameter& parameter, int number);

/// Returns the table with the shapes of one rank's parts, equal on all ranks; names and ids stay. A
/// vocabulary that the ranks do not divide has rows of padding behind its last part, which hold
/// zeros (as in Megatron). Throws a user error that names the config's key and the nearest sizes if
/// the blocks of a parameter do not divide among the ranks. Pure.
model::ParameterTable local_table(const model::ParameterTable& table,
                                  const comm::ParallelDims& dims, const Placements& placements);

}  // namespace llamesh::sharding
