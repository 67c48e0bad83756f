#include "checkpoint/format/state.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/format/format.hpp"
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

/// Calls visit(group, parameter) for each dataset, in order.
template <class Visit>
void for_each_dataset(const State& state, Visit visit) {
  const auto& parameters = state.layout.table().parameters;
  for (std::size_t g = 0; g < state.groups.size(); ++g)
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (state.groups[g].contents.contain(parameters[p]))
        visit(g, static_cast<model::ParameterId>(p));
}

std::vector<GroupContents> contents_of(const State& state) {
  std::vector<GroupContents> all;
  for (const auto& group : state.groups) all.push_back(group.contents);
  return all;
}

std::vector<ShardIo> with_memory(const State& state, const std::vector<ShardSlice>& holdings) {
  std::map<std::pair<std::size_t, model::ParameterId>, std::size_t> datasets;
  for_each_dataset(state, [&](std::size_t group, model::ParameterId parameter) {
    datasets.try_emplace({group, parameter}, datasets.size());
  });
  std::vector<ShardIo> transfers;
  for (const auto& h : holdings) {
    const auto& group = state.groups[h.group];
    expects(group.shards.size() == state.layout.units().size(), "{} has {} shards for {} units",
            group.path, group.shards.size(), state.layout.units().size());
    const auto gap = group.gaps.empty() ? 0 : group.gaps[model::index(h.parameter)];
    transfers.push_back({datasets.at({h.group, h.parameter}), h.group, h.parameter, h.part, h.begin,
                         values_of(state.layout.units()[h.unit], group.memory, group.shards[h.unit])
                             .slice(h.offset - gap, h.count)});
  }
  return transfers;
}

}  // namespace

State State::only(std::string_view path) const {
  State state{layout, rank, {}};
  for (const auto& group : groups)
    if (group.path == path) state.groups.push_back(group);
  expects(!state.groups.empty(), "the state has no group {}", path);
  return state;
}

State State::from_replicas(Replicas saved) const {
  const auto& dims = layout.dims();
  State state{layout, rank, {}};
  for (const auto& group : groups) {
    const auto& [frozen, has, apart, own] = group.contents;
    if (!group.contents.is_held(dims, rank)) continue;
    const bool has_errors = group.path == replica_path(own, errors_group);
    if (has_errors && saved.with_errors != dims.group_size(apart)) continue;
    state.groups.push_back(group);
    if (apart.none() || has_errors || saved.apart == 0) continue;
    const auto name = group.path.substr(replica_path(own, "").size());
    state.groups.back().path = replica_path(own % saved.apart, name);
  }
  return state;
}

State State::only_groups(bool of_frozen) const {
  State state{layout, rank, {}};
  for (const auto& group : groups)
    if (group.contents.frozen == of_frozen) state.groups.push_back(group);
  return state;
}

std::vector<GroupContents> groups_of(const Contents& contents,
                                     const sharding::ShardLayout& layout) {
  const auto& dims = layout.dims();
  std::vector<GroupContents> groups;
  if (contents.frozen) groups.push_back({.frozen = true});
  for (const auto& shared : contents.outer) groups.push_back({.has = shared.has});
  const auto apart = contents.outer.empty() ? comm::AxisSet() : dims.apart();
  for (int r = 0; r < dims.group_size(apart); ++r) {
    groups.push_back({.apart = apart, .replica = r});
    for (const auto& moment : contents.moments)
      groups.push_back({.has = moment.has, .apart = apart, .replica = r});
  }
  if (!contents.gradient_errors) return groups;
  const auto with_errors = layout.common_replicas();
  for (int r = 0; r < dims.group_size(with_errors); ++r)
    groups.push_back({.apart = with_errors, .replica = r});
  return groups;
}

namespace {

void add_group(State& state, std::string path, const sharding::ShardedTensor& tensor,
               bool frozen = false) {
  state.groups.push_back({std::move(path), tensor.shards, tensor.memory,
                          GroupContents{frozen, tensor.has}, tensor.gaps});
}

/// Adds a group of one of the replicas along `apart`, with shards if it is this rank's.
void add_of_replica(State& all, comm::AxisSet apart, int replica, std::string_view path,
                    const sharding::ShardedTensor& tensor) {
  add_group(all, replica_path(replica, path), tensor);
  auto& group = all.groups.back();
  group.contents.apart = apart;
  group.contents.replica = replica;
  if (!group.contents.is_held(all.layout.dims(), all.rank)) group.shards.clear();
}

/// Adds the weights and moments of each replica that trains apart.
void add_replicas(State& all, const sharding::ShardedState& state) {
  const auto& dims = state.layout().dims();
  for (int replica = 0; replica < dims.group_size(dims.apart()); ++replica) {
    add_of_replica(all, dims.apart(), replica, model_group, state.masters());
    for (const auto& moment : state.moments())
      add_of_replica(all, dims.apart(), replica, moment_group(moment.name), moment);
  }
}

void add_gradient_errors(State& all, const sharding::ShardedState& state) {
  const auto* errors = state.gradient_errors();
  if (errors == nullptr) return;
  const auto replicas = all.layout.common_replicas();
  for (int replica = 0; replica < all.layout.dims().group_size(replicas); ++replica)
    add_of_replica(all, replicas, replica, errors_group, *errors);
}

}  // namespace

State weights_of(const sharding::ShardedState& state) {
  State all{state.layout(), state.rank(), {}};
  add_group(all, std::string(model_group), state.masters());
  add_group(all, std::string(model_group), state.frozen(), true);
  return all;
}

State state_of(const sharding::ShardedState& state) {
  auto all = weights_of(state);
  const auto& outer = state.outer();
  if (outer.empty()) {
    for (const auto& moment : state.moments()) add_group(all, moment_group(moment.name), moment);
    add_gradient_errors(all, state);
    return all;
  }
  all.groups.front().shards = outer.front().shards;  // the weights of the latest exchange
  for (std::size_t i = 1; i < outer.size(); ++i)
    add_group(all, moment_group(outer[i].name), outer[i]);
  add_replicas(all, state);
  return all;
}

std::vector<DatasetEntry> datasets_of(const State& state) {
  std::vector<DatasetEntry> datasets;
  for_each_dataset(state, [&](std::size_t group, model::ParameterId id) {
    const auto& parameter = state.layout.table()[id];
    datasets.push_back({.path = dataset_path(state.groups[group].path, parameter.name),
                        .shape = parameter.shape,
                        .parts = state.layout.parts(id),
                        .segments = {}});
  });
  return datasets;
}

std::vector<ShardSlice> held_by(const sharding::ShardLayout& layout,
                                const std::vector<GroupContents>& groups, int rank) {
  std::vector<ShardSlice> holdings;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].is_held(layout.dims(), rank)) continue;
    for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
      for (const auto& piece : layout.pieces(unit, rank))
        if (groups[g].contain(layout.table()[piece.parameter]))
          holdings.push_back({g, unit, piece.parameter, layout.part_of(piece.parameter, rank),
                              piece.begin, piece.count, piece.offset});
  }
  return holdings;
}

HeldRows held_rows(const sharding::ShardLayout& layout, const std::vector<GroupContents>& groups,
                   int rank) {
  HeldRows rows;
  for (const auto& holding : held_by(layout, groups, rank)) {
    const auto& placement = layout.placement(holding.parameter);
    if (!placement.counts_on(layout.dims(), rank)) continue;
    const auto apart = groups[holding.group].apart;
    const auto copies = (placement.replicated(layout.dims()) | placement.apart) & ~apart;
    rows[copies.to_ulong()].push_back(holding);
  }
  return rows;
}

std::vector<ShardSlice> written_of(const HeldRows& rows, const comm::ParallelDims& dims, int rank) {
  std::vector<ShardSlice> mine;
  for (const auto& [set, holdings] : rows) {
    const comm::AxisSet axes(set);
    const auto share = share_of(holdings, dims.rank_in_group(axes, rank), dims.group_size(axes));
    mine.insert(mine.end(), share.begin(), share.end());
  }
  return mine;
}

std::vector<ShardIo> transfers_of(const State& state) {
  return with_memory(state, held_by(state.layout, contents_of(state), state.rank));
}

std::vector<ShardIo> transfers_to_write(const State& state) {
  return with_memory(state, written_by(state.layout, contents_of(state), state.rank));
}

BoxRange range_of(const ShardIo& transfer, const State& state) {
  const auto parts = state.layout.parts(transfer.parameter);
  return {parts[static_cast<std::size_t>(transfer.part)], transfer.begin, transfer.count()};
}

}  // namespace llamesh::checkpoint
