#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/parallel_dims.hpp"
#include "core/box.hpp"
#include "model/parameters.hpp"
#include "sharding/placement.hpp"

namespace llamesh::sharding {

using model::ModuleId;
using model::ParameterId;

/// A set of parameters that are gathered together, and the modules that need it when they are
/// entered (one as a rule; final norm and head share a unit).
struct Unit {
  std::string name;
  std::vector<ModuleId> modules;
  std::vector<ParameterId> parameters;
};

/// What one rank holds of a parameter: elements [begin, begin + count) of the rank's part of it are
/// at [offset, offset + count) of the rank's shard of the unit.
struct Piece {
  ParameterId parameter;
  std::int64_t begin;
  std::int64_t count;
  std::int64_t offset;
};

/// Where every element is stored, on every rank: the only code that turns a Placement into offsets.
///
/// A rank's parts of a unit's parameters follow one another without gaps in one flat range, so that
/// matrices used together are one matrix to a GEMM. The range is padded at its end to equal shards,
/// each a multiple of 32 elements (64 bytes of bf16), one for each rank along the axes over which
/// the unit is sharded. Pure arithmetic, the same on every rank.
class ShardLayout {
 public:
  /// `table` is borrowed and must outlive the layout. All parameters of a unit must be sharded, and
  /// have copies, along the same axes. Throws a user error that names a parameter that does not
  /// divide as its placement says.
  ShardLayout(const model::ParameterTable& table, std::vector<Unit> units, comm::ParallelDims dims,
              Placements placements);
  /// All parameters whole, and sharded along the axis `shard`.
  ShardLayout(const model::ParameterTable& table, std::vector<Unit> units, comm::ParallelDims dims);

  struct PlacedUnit : Unit {
    comm::AxisSet sharded;      ///< the axes over which it is sharded
    comm::AxisSet replicas;     ///< axes along which ranks with copies have other gradients
    int shards;                 ///< ranks along `sharded`
    std::int64_t numel;         ///< of one rank's parts, without padding
    std::int64_t padded_numel;  ///< shards * shard_numel
    std::int64_t shard_numel;   ///< of each rank
  };
  struct Place {
    std::size_t unit;
    std::int64_t offset;  ///< of the part's first element in the unit
  };

  const model::ParameterTable& table() const { return *table_; }
  const comm::ParallelDims& dims() const { return dims_; }
  const Placement& placement(ParameterId id) const { return placements_[model::index(id)]; }
  const std::vector<PlacedUnit>& units() const { return units_; }
  /// Elements that one rank owns of all units together, padding included.
  std::int64_t shard_numel() const;

  Place place(ParameterId id) const { return places_[model::index(id)]; }
  /// The table with the shapes of each rank's parts.
  const model::ParameterTable& local_table() const { return local_table_; }
  /// The shape of each rank's part of a parameter.
  const Shape& local_shape(ParameterId id) const { return local_table_[id].shape; }
  /// All parts that a parameter is cut into; one, if it is whole.
  std::vector<Box> parts(ParameterId id) const;
  /// The number among parts() of the one that `rank` holds.
  int part_of(ParameterId id, int rank) const;

  /// What rank `rank` owns of a unit, in order of offset. Empty where the shard is all padding.
  std::vector<Piece> pieces(std::size_t unit, int rank) const;
  /// A piece of rank `rank` as elements of the parameter.
  BoxRange range(const Piece& piece, int rank) const;

 private:
  const model::ParameterTable* table_;
  comm::ParallelDims dims_;
  Placements placements_;
  model::ParameterTable local_table_;
  std::vector<PlacedUnit> units_;
  std::vector<Place> places_;
};

}  // namespace llamesh::sharding
