#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh/parallel_dims.hpp"
#include "core/box.hpp"
#include "core/tensor.hpp"
#include "model/description/parameters.hpp"
#include "sharding/placement.hpp"

namespace llamesh::sharding {

using model::ModuleId;
using model::ParameterId;

/// Parameters that are gathered together, and the modules that need them on entry (usually one;
/// final norm and head share a unit).
struct Unit {
  std::string name;
  std::vector<ModuleId> modules;
  std::vector<ParameterId> parameters;
};

/// One rank's holding in a parameter: elements [begin, begin + count) in the rank's part are
/// elements [offset, offset + count) in its unit shard.
struct Piece {
  ParameterId parameter;
  std::int64_t begin;
  std::int64_t count;
  std::int64_t offset;
};
/// Returns views into the unit's shard.
std::vector<Tensor> views_of(std::span<const Piece> pieces, const Tensor& shard);

/// Location of every element on every rank. The only code that turns a Placement into offsets.
///
/// A rank's parts of a unit's parameters form one flat range without gaps, so that matrices used
/// together are one matrix to a GEMM. The range is padded at its end to equal shards, each a
/// multiple of 32 elements (64 bytes in bf16), one for each rank along the axes that shard the
/// unit; of a unit that is kept as codes, of as many as share a scale. Padding, there and behind
/// the last part of a vocabulary, is in no piece: it holds zeros. With pipeline stages, a rank has
/// nothing of a unit that its stage does not hold. Pure arithmetic, identical on every rank.
class ShardLayout {
 public:
  /// `table` is borrowed and must outlive the layout. All parameters of a unit must be sharded, and
  /// have copies, along the same axes; all are frozen, or none, and all are always fp32, or none.
  /// Replicas that train apart hold copies only of frozen parameters. Throws a user error that
  /// names a parameter that does not divide as its placement says, or whose codes do not.
  ShardLayout(const model::ParameterTable& table, std::vector<Unit> units, comm::ParallelDims dims,
              Placements placements);
  /// Makes all parameters whole, sharded along the axis `shard`.
  ShardLayout(const model::ParameterTable& table, std::vector<Unit> units,
              const comm::ParallelDims& dims);

  struct PlacedUnit : Unit {
    comm::AxisSet sharded;    ///< axes that shard it
    comm::AxisSet replicas;   ///< axes along which ranks with copies have other gradients
    std::vector<int> stages;  ///< whose ranks hold it (Placement::stages)
    bool frozen;              ///< all of its parameters are; else none is
    bool fp32;                ///< likewise: model::is_fp32()
    std::optional<ops::CodeFormat> codes;  ///< likewise: Parameter::codes
    int shards;                            ///< ranks along `sharded`
    std::int64_t numel;                    ///< one rank's parts, without padding
    std::int64_t padded_numel;             ///< shards * shard_numel
    std::int64_t shard_numel;              ///< per rank
  };
  struct Place {
    std::size_t unit;
    std::int64_t offset;  ///< offset of the part's first element in the unit
    bool padded;          ///< padding follows the last part
  };

  const model::ParameterTable& table() const { return *table_; }
  const comm::ParallelDims& dims() const { return dims_; }
  const Placement& placement(ParameterId id) const { return placements_[model::index(id)]; }
  const std::vector<PlacedUnit>& units() const { return units_; }
  /// Returns true if `rank` is in a stage that holds the unit.
  bool holds(std::size_t unit, int rank) const {
    return is_in_stage(units_[unit].stages, dims_, rank);
  }
  /// Returns the elements that a rank owns over all units, including padding.
  std::int64_t shard_numel(int rank = 0) const;
  /// Returns shard_numel() without the frozen units.
  std::int64_t trained_shard_numel(int rank = 0) const;
  /// Returns the axes along which ranks hold copies of every parameter.
  comm::AxisSet replicated_axes() const;
  /// Returns the axes along which ranks hold copies of a parameter beside different parts of others
  /// in its unit. What is computed from a whole shard, such as the scale of a block, differs there.
  comm::AxisSet copied_beside_parts(ParameterId id) const;
  /// Returns a rank's pieces of the parameters for which `is_wanted` is true.
  std::vector<Piece> pieces_if(const std::function<bool(ParameterId)>& is_wanted, std::size_t unit,
                               int rank) const;
  /// Returns how many elements those have on the rank, among those that share the unit, where they
  /// have most: all ranks can allocate the same.
  std::int64_t max_numel_if(const std::function<bool(ParameterId)>& is_wanted, std::size_t unit,
                            int rank) const;
  /// Returns the axes over which gradients of all trained units but fp32 ones add up once they are
  /// in the shards; empty if units differ.
  comm::AxisSet common_replicas() const;

  Place place(ParameterId id) const { return places_[model::index(id)]; }
  /// Returns the table with the shapes of each rank's parts.
  const model::ParameterTable& local_table() const { return local_table_; }
  /// Returns the shape of a rank's part of a parameter, with padding.
  const Shape& local_shape(ParameterId id) const { return local_table_[id].shape; }
  /// Returns all parts that a parameter is split into; one if it is whole.
  std::vector<Box> parts(ParameterId id) const;
  /// Returns the index into parts() for `rank`.
  int part_of(ParameterId id, int rank) const;
  /// Returns the part that `rank` holds, without padding.
  Box part(ParameterId id, int rank) const;

  /// Returns the pieces that `rank` owns in a unit, by offset. Empty if its shard is all padding.
  std::vector<Piece> pieces(std::size_t unit, int rank) const;
  /// Returns a rank's piece as a range in the parameter.
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
