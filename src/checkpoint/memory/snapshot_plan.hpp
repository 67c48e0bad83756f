#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/format/checkpoint_options.hpp"
#include "checkpoint/format/state.hpp"
#include "comm/mesh/topology.hpp"

/// Decisions about memory checkpoints: which rank keeps which snapshot, and which snapshots a
/// launch resumes from. All functions are pure, so every rank decides the same.
namespace llamesh::checkpoint {

/// Number of snapshots that a node keeps of the same shards: the last two steps.
inline constexpr int snapshots_per_key = 2;

/// Contents and size of a rank's shards. Ranks with equal keys hold the same elements in the same
/// places, whatever their mesh.
struct SnapshotKey {
  std::uint64_t hash = 0;
  std::int64_t bytes = 0;  ///< of the shards
  bool operator==(const SnapshotKey&) const = default;
};

/// Returns the key of this rank's shards. Reads none of their values.
SnapshotKey key_of(const State& state);

/// A snapshot that a node keeps.
struct KeptSnapshot {
  SnapshotKey key;
  int node;
  int rank;  ///< rank on that node that fills it
  int from;  ///< rank with the shards: `rank` itself, or one on another node

  bool is_remote_replica() const { return from != rank; }
  bool operator==(const KeptSnapshot&) const = default;
};

/// Returns all snapshots, by node. Ranks on a node with the same shards share a snapshot. If only
/// one node has some shards, the next node keeps a replica of them. `keys` are by rank.
std::vector<KeptSnapshot> kept_snapshots(const std::vector<SnapshotKey>& keys,
                                         const comm::Topology& topology, RemoteReplicas partner);

/// Returns the bytes that each node's snapshots take in memory.
std::vector<std::int64_t> bytes_per_node(const std::vector<KeptSnapshot>& kept, int nodes);

/// A snapshot found on a node by a launch.
struct FoundSnapshot {
  int node = 0;
  int slot = 0;
  SnapshotKey key;
  std::uint64_t launch = 0;     ///< identity of the launch that made it
  std::int64_t step = 0;        ///< optimizer steps done
  std::int64_t disk_step = -1;  ///< newest checkpoint on disk at that time; -1: none
  std::int64_t json_bytes = 0;  ///< of its TrainState
  bool operator==(const FoundSnapshot&) const = default;
};

/// Snapshots of one launch and step that together hold the state.
struct SnapshotSet {
  std::uint64_t launch = 0;
  std::int64_t step = 0;
  std::vector<FoundSnapshot> snapshots;  ///< by rank; from its own node if possible
};

/// Returns the newest complete set for ranks that hold `keys`; nothing if there is none. Snapshots
/// that a node lacks are taken evenly from the others.
std::optional<SnapshotSet> newest_set(std::span<const FoundSnapshot> found,
                                      const std::vector<SnapshotKey>& keys,
                                      const comm::Topology& topology);

/// A snapshot that a node receives from another.
struct SnapshotTransfer {
  FoundSnapshot snapshot;
  int from;  ///< rank on the snapshot's node
  int to;    ///< lowest rank on its node that needs the snapshot

  bool operator==(const SnapshotTransfer&) const = default;
};
/// Returns the transfers after which each node has the snapshots of its ranks.
std::vector<SnapshotTransfer> transfers_of(const SnapshotSet& set, const comm::Topology& topology);

}  // namespace llamesh::checkpoint
