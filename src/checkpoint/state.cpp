#include "checkpoint/state.hpp"

#include <algorithm>

#include "checkpoint/format.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {

std::vector<DatasetEntry> datasets_of(const State& state) {
  std::vector<DatasetEntry> datasets;
  for (const auto& group : state.groups)
    for (const auto& parameter : state.layout.table().parameters)
      datasets.push_back({dataset_path(group.path, parameter.name), parameter.shape, 0, {}});
  return datasets;
}

std::vector<Transfer> transfers_of(const State& state) {
  std::vector<Transfer> transfers;
  const std::size_t parameters = state.layout.table().parameters.size();
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const auto& group = state.groups[g];
    expects(group.shards.size() == state.layout.units().size(), "{} has {} shards for {} units",
            group.path, group.shards.size(), state.layout.units().size());
    for (std::size_t unit = 0; unit < group.shards.size(); ++unit) {
      const auto values = group.shards[unit].span<float>();
      for (const auto& piece : state.layout.pieces(unit, state.shard_rank))
        transfers.push_back({g * parameters + model::index(piece.parameter), piece.begin,
                             values.subspan(static_cast<std::size_t>(piece.offset),
                                            static_cast<std::size_t>(piece.count))});
    }
  }
  return transfers;
}

std::vector<Transfer> part_of(const std::vector<Transfer>& transfers, int part, int parts) {
  std::int64_t total = 0;
  for (const auto& t : transfers) total += std::ssize(t.values);
  const std::int64_t first = total / parts * part;
  const std::int64_t last = part + 1 == parts ? total : total / parts * (part + 1);
  std::vector<Transfer> mine;
  std::int64_t at = 0;  // of the transfer's first element in the row of all transfers
  for (const auto& t : transfers) {
    const std::int64_t begin = std::max(first, at);
    const std::int64_t end = std::min(last, at + std::ssize(t.values));
    if (begin < end)
      mine.push_back({t.dataset, t.begin + begin - at,
                      t.values.subspan(static_cast<std::size_t>(begin - at),
                                       static_cast<std::size_t>(end - begin))});
    at += std::ssize(t.values);
  }
  return mine;
}

}  // namespace llamesh::checkpoint
