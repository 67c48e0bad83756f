#include "sharding/shard_layout.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t shard_multiple = 32;

}  // namespace

ShardLayout::ShardLayout(const model::ParameterTable& table, std::vector<Unit> units,
                         int shard_size)
    : table_(&table), places_(table.parameters.size()), shard_size_(shard_size) {
  expects(shard_size >= 1, "a shard axis of size {}", shard_size);
  std::size_t placed = 0;
  for (auto& unit : units) {
    std::int64_t numel = 0;
    for (const auto id : unit.parameters) {
      places_[model::index(id)] = {units_.size(), numel};
      numel += table[id].numel();
      ++placed;
    }
    const std::int64_t per_rank = (numel + shard_size - 1) / shard_size;
    const std::int64_t shard = (per_rank + shard_multiple - 1) / shard_multiple * shard_multiple;
    units_.push_back({std::move(unit), numel, shard * shard_size, shard});
  }
  expects(placed == table.parameters.size(), "{} parameters lie in units, of {}", placed,
          table.parameters.size());
}

std::int64_t ShardLayout::shard_numel() const {
  std::int64_t sum = 0;
  for (const auto& unit : units_) sum += unit.shard_numel;
  return sum;
}

std::vector<Piece> ShardLayout::pieces(std::size_t unit, int rank) const {
  const auto& u = units_[unit];
  const std::int64_t first = rank * u.shard_numel;
  const std::int64_t last = first + u.shard_numel;
  std::vector<Piece> pieces;
  for (const auto id : u.parameters) {
    const std::int64_t at = place(id).offset;
    const std::int64_t begin = std::max(first, at);
    const std::int64_t end = std::min(last, at + (*table_)[id].numel());
    if (begin < end) pieces.push_back({id, begin - at, end - begin, begin - first});
  }
  return pieces;
}

ShardLayout::Owner ShardLayout::owner(ParameterId id, std::int64_t element) const {
  const auto [unit, offset] = place(id);
  const std::int64_t at = offset + element;
  const std::int64_t shard = units_[unit].shard_numel;
  return {static_cast<int>(at / shard), at % shard};
}

}  // namespace llamesh::sharding
