#include "checkpoint/state.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/format.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

/// Part `part` of `parts` equal ones of a row of transfers.
std::vector<Transfer> share_of(const std::vector<Transfer>& transfers, int part, int parts) {
  std::int64_t total = 0;
  for (const auto& t : transfers) total += t.count();
  const std::int64_t first = total / parts * part;
  const std::int64_t last = part + 1 == parts ? total : total / parts * (part + 1);
  std::vector<Transfer> mine;
  std::int64_t at = 0;  // of the transfer's first element in the row
  for (const auto& t : transfers) {
    const std::int64_t begin = std::max(first, at);
    const std::int64_t end = std::min(last, at + t.count());
    if (begin < end)
      mine.push_back({t.dataset, t.part, t.begin + begin - at,
                      t.values.slice(begin - at, end - begin), t.memory});
    at += t.count();
  }
  return mine;
}

}  // namespace

State state_of(const sharding::ShardedState& state) {
  State all{state.layout(), state.rank(), {}};
  const auto add = [&](std::string path, const sharding::ShardedTensor& tensor) {
    all.groups.push_back({std::move(path), tensor.shards, tensor.memory});
  };
  add(std::string(model_group), state.masters());
  for (const auto& moment : state.moments()) add(moment_group(moment.name), moment);
  return all;
}

std::vector<DatasetEntry> datasets_of(const State& state) {
  std::vector<DatasetEntry> datasets;
  const auto& parameters = state.layout.table().parameters;
  for (const auto& group : state.groups)
    for (std::size_t i = 0; i < parameters.size(); ++i)
      datasets.push_back({.path = dataset_path(group.path, parameters[i].name),
                          .shape = parameters[i].shape,
                          .parts = state.layout.parts(static_cast<model::ParameterId>(i)),
                          .segments = {}});
  return datasets;
}

std::vector<Transfer> transfers_of(const State& state) {
  std::vector<Transfer> transfers;
  const std::size_t parameters = state.layout.table().parameters.size();
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const auto& group = state.groups[g];
    expects(group.shards.size() == state.layout.units().size(), "{} has {} shards for {} units",
            group.path, group.shards.size(), state.layout.units().size());
    for (std::size_t unit = 0; unit < group.shards.size(); ++unit)
      for (const auto& piece : state.layout.pieces(unit, state.rank))
        transfers.push_back({g * parameters + model::index(piece.parameter),
                             state.layout.part_of(piece.parameter, state.rank), piece.begin,
                             group.shards[unit].slice(piece.offset, piece.count), group.memory});
  }
  return transfers;
}

std::vector<Transfer> transfers_to_write(const State& state) {
  const auto& dims = state.layout.dims();
  const std::size_t parameters = state.layout.table().parameters.size();
  std::map<unsigned long, std::vector<Transfer>> by_replicas;  // by AxisSet::to_ulong()
  for (const auto& transfer : transfers_of(state)) {
    const auto id = static_cast<model::ParameterId>(transfer.dataset % parameters);
    by_replicas[state.layout.placement(id).replicated(dims).to_ulong()].push_back(transfer);
  }
  std::vector<Transfer> mine;
  for (const auto& [axes, transfers] : by_replicas) {
    const auto share =
        share_of(transfers, dims.rank_in_group(axes, state.rank), dims.group_size(axes));
    mine.insert(mine.end(), share.begin(), share.end());
  }
  return mine;
}

}  // namespace llamesh::checkpoint
