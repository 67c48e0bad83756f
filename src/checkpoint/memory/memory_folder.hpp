#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/memory/snapshot_plan.hpp"
#include "comm/mesh/topology.hpp"

/// Folders with a run's memory checkpoints, one per node, in /dev/shm.
namespace llamesh::checkpoint {

/// Returns the path, up to the node, of a run's folders on every node:
/// /dev/shm/llamesh-memory-<user>-<hash of the run folder's path>-
std::string memory_folder_prefix(const std::filesystem::path& run_folder);
/// Returns a node's name in its folder's name: <host>.<node on this host>, since
/// mesh.ranks_per_node divides hosts.
std::string memory_node_name(const comm::Topology& topology, int node);

/// Removes this host's folders whose paths begin with `prefix`, except those in `kept`. Ignores
/// failures.
void remove_memory_folders(const std::string& prefix,
                           const std::set<std::filesystem::path>& kept = {});

/// Returns a shell command that removes the run's folders on the host where it runs if they belong
/// to the job $1 (job_name()). Another job may have taken the run over, on nodes that both have.
std::string removal_command(const std::filesystem::path& run_folder);

/// Returns the name of the empty file that marks a folder as this job's.
std::string owner_mark();
/// Marks a folder as this job's. Call it on one rank per node.
void take_ownership(const std::filesystem::path& folder);
/// Creates a folder that only this user can enter. Throws a user error if something else has its
/// name.
void make_memory_folder(const std::filesystem::path& folder);

/// Lists what is in a folder; nothing if it cannot be read.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);

/// Returns a snapshot's file name.
std::string snapshot_name(const SnapshotKey& key, int slot);
/// Lists a run's valid snapshots in a node's folder. Skips everything else.
std::vector<FoundSnapshot> snapshots_in(const std::filesystem::path& folder, std::uint64_t run,
                                        int node);
/// Returns a line for each of a run's snapshots whose header contradicts itself or the file's name,
/// although its hash is right.
std::vector<std::string> bad_headers_in(const std::filesystem::path& folder, std::uint64_t run);

/// Returns a random number that is not 0.
std::uint64_t random_identity();
/// Reads the run's identity from its folder of checkpoints, or writes a new one there. A run folder
/// that was removed and created again has another one, so the earlier run's snapshots are not used.
std::uint64_t identity_of_run(const std::filesystem::path& checkpoints);

}  // namespace llamesh::checkpoint
