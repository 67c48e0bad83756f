#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/format/checkpoint_options.hpp"
#include "plan/step_plan.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::plan {

/// Returns the bytes that memory checkpoints take on the host of `rank`, for all its ranks, as
/// checkpoint::bytes_per_node() counts them. `shard_bytes` is the size of one rank's shards in a
/// snapshot, equal on every rank. 0 if the run has no memory checkpoints. Pure.
std::int64_t memory_checkpoint_bytes(const train::Setup& setup, int rank, std::int64_t shard_bytes,
                                     checkpoint::RemoteReplicas partner);

/// Room for memory checkpoints on a host.
struct MemoryCheckpointRoom {
  std::string host;
  std::int64_t limit = 0;          ///< checkpoint.memory.limit; 0: none
  std::int64_t shared_memory = 0;  ///< checkpoint::room_for_snapshots()
  std::int64_t left_by_steps = 0;  ///< host memory that the ranks do not take
};

/// Returns the room on this rank's host, assuming that all its ranks take as much as this one.
MemoryCheckpointRoom memory_checkpoint_room(const train::Setup& setup,
                                            const train::PlannedMemory& planned, int rank);

/// Throws a user error with the numbers, and what would fit, if memory checkpoints need more than
/// that. Pure.
void check_memory_checkpoints(const train::PlannedMemory& planned,
                              const MemoryCheckpointRoom& room);

}  // namespace llamesh::plan
