#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint_options.hpp"
#include "checkpoint/memory/image_plan.hpp"
#include "checkpoint/memory/memory_image.hpp"
#include "checkpoint/state.hpp"
#include "checkpoint/state_reader.hpp"
#include "comm/mesh/communicator.hpp"
#include "comm/mesh/topology.hpp"

namespace llamesh::checkpoint {

/// Returns the folder for a run's images on this rank's node:
/// /dev/shm/llamesh-memory-<user>-<hash of the run folder's path>-<host>.<node of this host>.
std::filesystem::path memory_folder(const std::filesystem::path& run_folder,
                                    const comm::Topology& topology, int rank);

/// A run's checkpoints in the memory of its nodes: images of the ranks' shards after the last two
/// such steps, in /dev/shm. They outlive the processes, but not their node, so shards that only one
/// node holds are copied to the next node behind the following steps (docs/reliability.md).
/// All calls are collective over the world.
class MemoryCheckpoints {
 public:
  /// Borrows the world until the constructor returns. `run_folder` must be this job's (Store).
  MemoryCheckpoints(const std::filesystem::path& run_folder,
                    const MemoryCheckpointOptions& options, const comm::Topology& topology,
                    const comm::Communicator& world);
  ~MemoryCheckpoints();  ///< Waits for partner copies; images stay.
  MemoryCheckpoints(const MemoryCheckpoints&) = delete;
  MemoryCheckpoints& operator=(const MemoryCheckpoints&) = delete;

  /// Fills the state from the newest complete set of undamaged images that is newer than
  /// `disk_step`, the newest checkpoint on disk (-1: none). Nodes without their images receive them
  /// from others. Returns nothing, with a line that says why if there were images, if no set can be
  /// used. Rank 0 calls `accept` before any state is read. If the set refers to a base model,
  /// frozen weights are left as they are.
  std::optional<TrainState> resume(const State& state, std::int64_t disk_step,
                                   const Accept& accept = {});

  /// Takes memory for the images of this state, and removes those of earlier starts that no later
  /// start can use. Throws exit 78 if a node has too little.
  void reserve(const State& state);

  /// Copies the state into this node's images, and begins to send partner copies. Waits for earlier
  /// partner copies first. `disk_step` is the newest committed checkpoint on disk; -1: none.
  void save(const State& state, const TrainState& progress, std::int64_t disk_step);

  /// Waits for partner copies, and throws their error.
  void wait();

  /// Removes the run's images: it needs them no more.
  void remove();
};

}  // namespace llamesh::checkpoint
