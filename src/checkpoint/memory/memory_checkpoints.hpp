#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/format/checkpoint_options.hpp"
#include "checkpoint/format/state.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/memory/memory_snapshot.hpp"
#include "checkpoint/memory/snapshot_plan.hpp"
#include "comm/mesh/topology.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::checkpoint {

/// A run's checkpoints in its nodes' memory: snapshots of the ranks' shards after the last two such
/// steps, in /dev/shm. They outlive the processes but not their node, so shards that only one node
/// has are copied to the next node during the following steps (docs/reliability.md). All calls are
/// collective over the world.
class MemoryCheckpoints {
 public:
  /// Reads the run's identity from its folder, which must be this job's (Store), or writes it.
  /// Borrows the world until the constructor returns.
  MemoryCheckpoints(const std::filesystem::path& run_folder, const MemoryCheckpointOptions& options,
                    const comm::Topology& topology, const comm::Communicator& world);
  ~MemoryCheckpoints();  ///< Waits for transfers of replicas; snapshots stay.
  MemoryCheckpoints(const MemoryCheckpoints&) = delete;
  MemoryCheckpoints& operator=(const MemoryCheckpoints&) = delete;

  /// Fills the state from the newest complete set of good snapshots that is newer than `disk_step`,
  /// the newest checkpoint on disk (-1: none). Nodes without their snapshots receive them from
  /// others. Logs each bad snapshot and what is used instead. Returns nothing if no set can be
  /// used, and logs why if there were newer snapshots. Rank 0 calls `accept` before any state is
  /// read. If the snapshots refer to a base model, frozen weights are left as they are.
  std::optional<TrainState> resume(const State& state, std::int64_t disk_step,
                                   const Accept& accept = {});

  /// Describes the memory that reserve() has taken, and replicas on other nodes, in one line.
  std::string describe() const;

  /// Takes memory for the snapshots of this state, with `json_bytes` or more for the TrainState.
  /// Discards snapshots of earlier launches, except those up to the step that resume() used. Throws
  /// a user error if a node has too little memory.
  void reserve(const State& state, std::int64_t json_bytes = 0);

  /// Copies the state into this node's snapshots, and begins to send replicas to other nodes. Waits
  /// for earlier transfers first. `disk_step` is the newest committed checkpoint on disk; -1: none.
  void save(const State& state, const TrainState& progress, std::int64_t disk_step);

  /// Returns true if shards are copied to other nodes during the following steps.
  bool has_remote_replicas() const;

  /// Waits for transfers of replicas on all ranks. Throws on the ranks whose exchange failed.
  void wait();

  /// Removes the run's snapshots once it no longer needs them.
  void remove();

 private:
  /// A snapshot that this rank keeps, for two steps.
  struct OwnSnapshots {
    KeptSnapshot kept;
    std::vector<MemorySnapshot> slots;

    MemorySnapshot& older();
    MemorySnapshot& newer();
  };

  // memory_resume.cpp
  std::filesystem::path path_of(const FoundSnapshot& snapshot) const;
  std::vector<FoundSnapshot> find_snapshots() const;
  std::vector<std::string> find_bad_headers() const;
  std::vector<std::string> drop_other_sizes(std::span<const SnapshotKey> keys,
                                            std::vector<FoundSnapshot>& found) const;
  std::vector<SnapshotKey> gather_keys(const State& state) const;
  MemorySnapshot open_snapshot(const FoundSnapshot& snapshot) const;
  MemorySnapshot open_slot_for(const FoundSnapshot& snapshot) const;
  bool make_room(const std::vector<SnapshotTransfer>& transfers, const SnapshotSet& set,
                 std::vector<FoundSnapshot>& found) const;
  bool receive(const SnapshotSet& set, std::vector<FoundSnapshot>& found) const;
  std::vector<std::string> drop_bad(const SnapshotSet& set, bool has_frozen,
                                    std::vector<FoundSnapshot>& found) const;
  TrainState load(const SnapshotSet& set, const State& state, const Accept& accept) const;

  std::set<std::filesystem::path> folders_on_host() const;
  void take_memory(std::int64_t json_bytes);
  void send_copies(std::int64_t json_bytes);

  MemoryCheckpointOptions options_;
  comm::Topology topology_;
  comm::Communicator world_;
  comm::Communicator copying_;    // the thread's
  std::string prefix_;            // every node's folder begins with it
  std::filesystem::path folder_;  // this node's
  std::string on_host_;           // the host's folders begin with it
  bool leads_node_;               // this is its node's lowest rank
  std::uint64_t run_ = 0;         // identities
  std::uint64_t launch_ = 0;
  std::optional<SnapshotSet> resumed_;
  SnapshotKey key_;                 // this rank's
  std::vector<KeptSnapshot> kept_;  // on all nodes
  std::vector<OwnSnapshots> own_;
  std::int64_t json_room_ = 0;
  std::thread thread_;
  std::exception_ptr error_;
};

}  // namespace llamesh::checkpoint
