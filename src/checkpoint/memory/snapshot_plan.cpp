#include "checkpoint/memory/snapshot_plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/memory/memory_snapshot.hpp"
#include "core/hash.hpp"

namespace llamesh::checkpoint {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// Returns the ranks on each node, by local rank.
std::vector<std::vector<int>> ranks_by_node(const comm::Topology& topology) {
  std::vector<std::vector<int>> ranks(at(topology.nodes));
  for (std::size_t r = 0; r < topology.node_of.size(); ++r)
    ranks[at(topology.node_of[r])].push_back(static_cast<int>(r));
  return ranks;
}

/// Returns the rank on `node` with a rank's local rank, or another one if the node has fewer.
int counterpart(const std::vector<std::vector<int>>& ranks_on, int node, int rank,
                const comm::Topology& topology) {
  const auto& ranks = ranks_on[at(node)];
  return ranks[at(topology.local_rank_of[at(rank)]) % ranks.size()];
}

/// Returns a snapshot for each rank from those of one launch and step, or nothing if some rank has
/// none.
std::optional<std::vector<FoundSnapshot>> choose_snapshots(std::span<const FoundSnapshot> snapshots,
                                                           const std::vector<SnapshotKey>& keys,
                                                           const comm::Topology& topology) {
  std::map<std::uint64_t, std::vector<FoundSnapshot>> by_key;
  for (const auto& snapshot : snapshots) by_key[snapshot.key.hash].push_back(snapshot);
  std::vector<int> received_from(at(topology.nodes));
  std::vector<FoundSnapshot> chosen;
  for (std::size_t r = 0; r < keys.size(); ++r) {
    const auto found = by_key.find(keys[r].hash);
    if (found == by_key.end() || found->second.front().key != keys[r]) return {};
    const auto& copies = found->second;
    const auto own = std::ranges::find(copies, topology.node_of[r], &FoundSnapshot::node);
    chosen.push_back(own != copies.end() ? *own
                                         : *std::ranges::min_element(copies, {}, [&](auto& copy) {
                                             return received_from[at(copy.node)];
                                           }));
    if (own == copies.end()) ++received_from[at(chosen.back().node)];
  }
  return chosen;
}

}  // namespace

SnapshotKey key_of(const State& state) {
  SnapshotKey key;
  RunningHash hash;
  const auto add = [&](std::int64_t number) { hash.add(&number, sizeof(number)); };
  const auto add_text = [&](const std::string& text) {
    add(std::ssize(text));
    hash.add(text.data(), text.size());
  };
  std::vector<GroupContents> contents;
  for (const auto& group : state.groups) {
    contents.push_back(group.contents);
    const auto before = key.bytes;
    for (const auto& shard : group.shards) key.bytes += shard ? shard_bytes_in_snapshot(shard) : 0;
    if (key.bytes == before) continue;
    add_text(group.path);
    add(group.contents.frozen ? 1 : 0);
    for (const auto& shard : group.shards) {
      add(shard ? shard.numel() : 0);
      add(static_cast<std::int64_t>(shard.dtype()));
    }
  }
  for (const auto& slice : held_by(state.layout, contents, state.rank)) {
    const auto& group = state.groups[slice.group];
    const auto part = state.layout.parts(slice.parameter)[at(slice.part)];
    add_text(group.path);
    add_text(state.layout.table()[slice.parameter].name);
    for (const auto size : part.begin) add(size);
    for (const auto size : part.shape) add(size);
    add(static_cast<std::int64_t>(slice.unit));
    for (const auto number : {slice.begin, slice.count, slice.offset}) add(number);
  }
  key.hash = hash.value();
  return key;
}

std::vector<KeptSnapshot> kept_snapshots(const std::vector<SnapshotKey>& keys,
                                         const comm::Topology& topology, RemoteReplicas partner) {
  const auto ranks_on = ranks_by_node(topology);
  std::vector<KeptSnapshot> kept;
  std::map<std::uint64_t, int> nodes_with;
  for (int node = 0; node < topology.nodes; ++node) {
    std::set<std::uint64_t> here;
    for (const int rank : ranks_on[at(node)])
      if (here.insert(keys[at(rank)].hash).second)
        kept.push_back({keys[at(rank)], node, rank, rank});
    for (const auto key : here) ++nodes_with[key];
  }
  if (partner == RemoteReplicas::off || topology.nodes == 1) return kept;
  const auto own = kept;
  for (const auto& snapshot : own) {
    if (nodes_with[snapshot.key.hash] > 1) continue;
    const int next = (snapshot.node + 1) % topology.nodes;
    kept.push_back(
        {snapshot.key, next, counterpart(ranks_on, next, snapshot.rank, topology), snapshot.rank});
  }
  std::ranges::stable_sort(kept, {}, &KeptSnapshot::node);
  return kept;
}

std::vector<std::int64_t> bytes_per_node(const std::vector<KeptSnapshot>& kept, int nodes) {
  std::vector<std::int64_t> bytes(at(nodes));
  for (const auto& snapshot : kept)
    bytes[at(snapshot.node)] += snapshots_per_key * snapshot_bytes(snapshot.key.bytes);
  return bytes;
}

std::optional<SnapshotSet> newest_set(std::span<const FoundSnapshot> found,
                                      const std::vector<SnapshotKey>& keys,
                                      const comm::Topology& topology) {
  std::map<std::pair<std::int64_t, std::uint64_t>, std::vector<FoundSnapshot>> sets;
  for (const auto& snapshot : found) sets[{snapshot.step, snapshot.launch}].push_back(snapshot);
  for (auto set = sets.rbegin(); set != sets.rend(); ++set)
    if (auto snapshots = choose_snapshots(set->second, keys, topology))
      return SnapshotSet{set->first.second, set->first.first, std::move(*snapshots)};
  return {};
}

std::vector<SnapshotTransfer> transfers_of(const SnapshotSet& set, const comm::Topology& topology) {
  const auto ranks_on = ranks_by_node(topology);
  std::set<std::pair<int, std::uint64_t>> done;  // node, key
  std::vector<SnapshotTransfer> transfers;
  for (std::size_t r = 0; r < set.snapshots.size(); ++r) {
    const auto& snapshot = set.snapshots[r];
    const int node = topology.node_of[r];
    if (snapshot.node == node || !done.insert({node, snapshot.key.hash}).second) continue;
    const int rank = static_cast<int>(r);
    transfers.push_back({snapshot, counterpart(ranks_on, snapshot.node, rank, topology), rank});
  }
  return transfers;
}

}  // namespace llamesh::checkpoint
