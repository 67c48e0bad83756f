#include "checkpoint/state.hpp"

#include <algorithm>
#include <utility>

#include "checkpoint/format.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

/// Part `part` of `parts` equal ones of a row of holdings.
std::vector<ShardSlice> share_of(const std::vector<ShardSlice>& holdings, int part, int parts) {
  std::int64_t total = 0;
  for (const auto& h : holdings) total += h.count;
  const std::int64_t first = total / parts * part;
  const std::int64_t last = part + 1 == parts ? total : total / parts * (part + 1);
  std::vector<ShardSlice> mine;
  std::int64_t at = 0;  // of the holding's first element in the row
  for (const auto& h : holdings) {
    const std::int64_t begin = std::max(first, at);
    const std::int64_t end = std::min(last, at + h.count);
    if (begin < end)
      mine.push_back({h.group, h.unit, h.parameter, h.part, h.begin + begin - at, end - begin,
                      h.offset + begin - at});
    at += h.count;
  }
  return mine;
}

std::vector<ShardIo> with_memory(const State& state, const std::vector<ShardSlice>& holdings) {
  const std::size_t parameters = state.layout.table().parameters.size();
  std::vector<ShardIo> transfers;
  for (const auto& h : holdings) {
    const auto& group = state.groups[h.group];
    expects(group.shards.size() == state.layout.units().size(), "{} has {} shards for {} units",
            group.path, group.shards.size(), state.layout.units().size());
    transfers.push_back({h.group * parameters + model::index(h.parameter), h.part, h.begin,
                         group.shards[h.unit].slice(h.offset, h.count), group.memory});
  }
  return transfers;
}

}  // namespace

const StateGroup& State::group(std::string_view path) const {
  const auto found = std::ranges::find(groups, path, &StateGroup::path);
  expects(found != groups.end(), "the state has no group {}", path);
  return *found;
}

StateDataset State::dataset(std::size_t index) const {
  const auto parameters = layout.table().parameters.size();
  return {groups.at(index / parameters), static_cast<model::ParameterId>(index % parameters)};
}

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

std::vector<ShardSlice> held_by(const sharding::ShardLayout& layout, std::size_t groups, int rank) {
  std::vector<ShardSlice> holdings;
  for (std::size_t g = 0; g < groups; ++g)
    for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
      for (const auto& piece : layout.pieces(unit, rank))
        holdings.push_back({g, unit, piece.parameter, layout.part_of(piece.parameter, rank),
                            piece.begin, piece.count, piece.offset});
  return holdings;
}

HeldRows held_rows(const sharding::ShardLayout& layout, std::size_t groups, int rank) {
  HeldRows rows;
  for (const auto& holding : held_by(layout, groups, rank))
    rows[layout.placement(holding.parameter).replicated(layout.dims()).to_ulong()].push_back(
        holding);
  return rows;
}

std::vector<ShardSlice> written_of(const HeldRows& rows, const comm::ParallelDims& dims, int rank) {
  std::vector<ShardSlice> mine;
  for (const auto& [axes, holdings] : rows) {
    const auto share = share_of(holdings, dims.rank_in_group(axes, rank), dims.group_size(axes));
    mine.insert(mine.end(), share.begin(), share.end());
  }
  return mine;
}

std::vector<ShardIo> transfers_of(const State& state) {
  return with_memory(state, held_by(state.layout, state.groups.size(), state.rank));
}

std::vector<ShardIo> transfers_to_write(const State& state) {
  return with_memory(state, written_by(state.layout, state.groups.size(), state.rank));
}

BoxRange range_of(const ShardIo& transfer, const State& state) {
  const auto parts = state.layout.parts(state.dataset(transfer.dataset).parameter);
  return {parts[static_cast<std::size_t>(transfer.part)], transfer.begin, transfer.count()};
}

}  // namespace llamesh::checkpoint
