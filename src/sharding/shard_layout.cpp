#include "sharding/shard_layout.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t shard_multiple = 32;

/// Returns the axes that all parameters of a unit have in common.
UnitAxes axes_of(const Unit& unit, const Placements& placements, const comm::ParallelDims& dims) {
  expects(!unit.parameters.empty(), "{} has no parameters", unit.name);
  auto axes = unit_axes(placements[model::index(unit.parameters.front())], dims);
  for (const auto id : unit.parameters)
    expects(unit_axes(placements[model::index(id)], dims) == axes,
            "{} has parameters that other ranks hold, or that are sharded or replicated along "
            "other axes, than its first",
            unit.name);
  return axes;
}

bool is_frozen(const Unit& unit, const model::ParameterTable& table) {
  const bool frozen = table[unit.parameters.front()].frozen;
  for (const auto id : unit.parameters)
    expects(table[id].frozen == frozen, "{} has frozen and trained parameters", unit.name);
  return frozen;
}

bool is_fp32(const Unit& unit, const model::ParameterTable& table) {
  const bool fp32 = model::is_fp32(table[unit.parameters.front()].role);
  for (const auto id : unit.parameters)
    expects(model::is_fp32(table[id].role) == fp32, "{} has parameters of two dtypes", unit.name);
  return fp32;
}

std::optional<ops::CodeFormat> codes_of(const Unit& unit, const model::ParameterTable& table) {
  const auto codes = table[unit.parameters.front()].codes;
  for (const auto id : unit.parameters)
    expects(table[id].codes == codes, "{} has parameters in two forms", unit.name);
  expects(!codes || is_frozen(unit, table), "{} is trained, and kept as codes", unit.name);
  return codes;
}

/// Checks that numbers which share a scale in the whole parameter do so in a rank's part of it:
/// codes are then the same on every mesh.
void check_codes(const model::Parameter& parameter, const Placement& placement,
                 const Shape& local_shape) {
  if (!parameter.codes) return;
  std::size_t dim = 0;  // the last one that is split: a part has whole rows of those behind it
  for (std::size_t d = 0; d < placement.split.size(); ++d)
    if (placement.split[d].any()) dim = d;
  std::int64_t neighbors = 1;
  for (auto d = dim; d < local_shape.size(); ++d) neighbors *= local_shape[d];
  const auto shared = ops::scale_numel(*parameter.codes);
  validate(neighbors % shared == 0,
           "model.lora.base: {} numbers in a row share a scale, but a rank's part of {} has {}, "
           "which is no multiple; {}",
           shared, parameter.name, neighbors,
           neighbors == parameter.numel() ? "remove model.lora.base"
                                          : "use fewer ranks along the axis tensor");
}

}  // namespace

std::vector<Tensor> views_of(std::span<const Piece> pieces, const Tensor& shard) {
  std::vector<Tensor> views;
  for (const auto& piece : pieces) views.push_back(shard.slice(piece.offset, piece.count));
  return views;
}

ShardLayout::ShardLayout(const model::ParameterTable& table, std::vector<Unit> units,
                         const comm::ParallelDims& dims)
    : ShardLayout(table, std::move(units), dims, whole_and_sharded(table, dims)) {}

ShardLayout::ShardLayout(const model::ParameterTable& table, std::vector<Unit> units,
                         comm::ParallelDims dims, Placements placements)
    : table_(&table),
      dims_(std::move(dims)),
      placements_(std::move(placements)),
      local_table_(sharding::local_table(table, dims_, placements_)),
      places_(table.parameters.size()) {
  for (std::size_t i = 0; i < placements_.size(); ++i)
    if (!table.parameters[i].frozen) placements_[i].apart = dims_.apart();
  std::size_t placed = 0;
  for (auto& unit : units) {
    std::int64_t numel = 0;
    for (const auto id : unit.parameters) {
      const std::int64_t local = llamesh::numel(local_shape(id));
      check_codes(table[id], placement(id), local_shape(id));
      const bool padded = local * sharding::parts(placement(id), dims_) > table[id].numel();
      places_[model::index(id)] = {units_.size(), numel, padded};
      numel += local;
      ++placed;
    }
    auto [sharded, replicas, stages] = axes_of(unit, placements_, dims_);
    const std::int64_t shards = dims_.group_size(sharded);
    const std::int64_t per_rank = (numel + shards - 1) / shards;
    const bool frozen = is_frozen(unit, table);
    const bool fp32 = is_fp32(unit, table);
    const auto codes = codes_of(unit, table);
    const std::int64_t multiple = codes ? ops::scale_numel(*codes) : shard_multiple;
    const std::int64_t shard = (per_rank + multiple - 1) / multiple * multiple;
    units_.push_back({std::move(unit), sharded, replicas, std::move(stages), frozen, fp32, codes,
                      static_cast<int>(shards), numel, shard * shards, shard});
  }
  expects(placed == table.parameters.size(), "{} parameters are in units, of {}", placed,
          table.parameters.size());
}

std::int64_t ShardLayout::shard_numel(int rank) const {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (holds(u, rank)) sum += units_[u].shard_numel;
  return sum;
}

std::int64_t ShardLayout::trained_shard_numel(int rank) const {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (holds(u, rank) && !units_[u].frozen) sum += units_[u].shard_numel;
  return sum;
}

comm::AxisSet ShardLayout::replicated_axes() const {
  auto axes = dims_.all();
  for (const auto& placement : placements_) axes &= placement.replicated(dims_);
  return axes;
}

comm::AxisSet ShardLayout::copied_beside_parts(ParameterId id) const {
  comm::AxisSet split;
  for (const auto other : units_[place(id).unit].parameters) split |= placement(other).split_axes();
  return dims_.without_ones(split & ~placement(id).split_axes());
}

std::vector<Piece> ShardLayout::pieces_if(const std::function<bool(ParameterId)>& is_wanted,
                                          std::size_t unit, int rank) const {
  auto wanted = pieces(unit, rank);
  std::erase_if(wanted, [&](const Piece& piece) { return !is_wanted(piece.parameter); });
  return wanted;
}

std::int64_t ShardLayout::max_numel_if(const std::function<bool(ParameterId)>& is_wanted,
                                       std::size_t unit, int rank) const {
  std::int64_t largest = 0;
  for (const int member : dims_.group(units_[unit].sharded, rank)) {
    std::int64_t sum = 0;
    for (const auto& piece : pieces_if(is_wanted, unit, member)) sum += piece.count;
    largest = std::max(largest, sum);
  }
  return largest;
}

comm::AxisSet ShardLayout::common_replicas() const {
  std::optional<comm::AxisSet> common;
  for (const auto& unit : units_) {
    if (unit.frozen || unit.fp32) continue;
    const auto replicas = dims_.without_ones(unit.replicas);
    if (common.value_or(replicas) != replicas) return {};
    common = replicas;
  }
  return common.value_or(comm::AxisSet());
}

std::vector<Box> ShardLayout::parts(ParameterId id) const {
  std::vector<Box> boxes;
  for (int i = 0; i < sharding::parts(placement(id), dims_); ++i)
    boxes.push_back(sharding::part(placement(id), dims_, (*table_)[id], i));
  return boxes;
}

int ShardLayout::part_of(ParameterId id, int rank) const {
  return sharding::part_of(placement(id), dims_, rank);
}

std::vector<Piece> ShardLayout::pieces(std::size_t unit, int rank) const {
  if (!holds(unit, rank)) return {};
  const auto& u = units_[unit];
  const std::int64_t first = dims_.rank_in_group(u.sharded, rank) * u.shard_numel;
  const std::int64_t last = first + u.shard_numel;
  std::vector<Piece> pieces;
  for (const auto id : u.parameters) {
    const auto placed = place(id);
    const std::int64_t count = placed.padded ? part(id, rank).numel() : numel(local_shape(id));
    const std::int64_t begin = std::max(first, placed.offset);
    const std::int64_t end = std::min(last, placed.offset + count);
    if (begin < end) pieces.push_back({id, begin - placed.offset, end - begin, begin - first});
  }
  return pieces;
}

Box ShardLayout::part(ParameterId id, int rank) const {
  return sharding::part(placement(id), dims_, (*table_)[id], part_of(id, rank));
}

BoxRange ShardLayout::range(const Piece& piece, int rank) const {
  return {part(piece.parameter, rank), piece.begin, piece.count};
}

}  // namespace llamesh::sharding
