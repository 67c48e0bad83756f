#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.hpp"

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

/// Part of a parameter on one rank: elements [begin, begin + count) of the parameter lie at
/// [offset, offset + count) of the rank's shard of the unit.
struct Piece {
  ParameterId parameter;
  std::int64_t begin;
  std::int64_t count;
  std::int64_t offset;
};

/// Where every element lies. A unit's parameters follow one another without gaps in one flat range,
/// so that matrices used together are one matrix to a GEMM. The range is padded at its end to
/// shard_size equal shards, each a multiple of 32 elements (64 bytes of bf16); rank r of the shard
/// axis owns the r-th. Pure arithmetic, the same on every rank.
class ShardLayout {
 public:
  /// `table` is borrowed and must outlive the layout.
  ShardLayout(const model::ParameterTable& table, std::vector<Unit> units, int shard_size);

  struct PlacedUnit : Unit {
    std::int64_t numel;         ///< without padding
    std::int64_t padded_numel;  ///< shard_size * shard_numel
    std::int64_t shard_numel;   ///< of each rank
  };
  struct Place {
    std::size_t unit;
    std::int64_t offset;  ///< of the parameter's first element in the unit
  };
  struct Owner {
    int rank;
    std::int64_t offset;  ///< in that rank's shard of the unit
  };

  const model::ParameterTable& table() const { return *table_; }
  const std::vector<PlacedUnit>& units() const { return units_; }
  int shard_size() const { return shard_size_; }
  /// Elements that one rank owns of all units together, padding included.
  std::int64_t shard_numel() const;

  Place place(ParameterId id) const { return places_[model::index(id)]; }
  /// What rank `rank` owns of a unit, in order of offset. Empty where the shard is all padding.
  std::vector<Piece> pieces(std::size_t unit, int rank) const;
  /// The rank that owns an element of a parameter.
  Owner owner(ParameterId id, std::int64_t element) const;

 private:
  const model::ParameterTable* table_;
  std::vector<PlacedUnit> units_;
  std::vector<Place> places_;
  int shard_size_;
};

}  // namespace llamesh::sharding
