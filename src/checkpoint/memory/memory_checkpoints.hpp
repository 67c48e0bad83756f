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
#include "checkpoint/memory/image_plan.hpp"
#include "checkpoint/memory/memory_image.hpp"
#include "comm/mesh/topology.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::checkpoint {

/// A run's checkpoints in its nodes' memory: images of the ranks' shards after the last two such
/// steps, in /dev/shm. They outlive the processes but not their node, so shards that only one node
/// has are copied to the next node during the following steps (docs/reliability.md). All calls are
/// collective over the world.
class MemoryCheckpoints {
 public:
  /// Reads the run's identity from its folder, which must be this job's (Store), or writes it.
  /// Borrows the world until the constructor returns.
  MemoryCheckpoints(const std::filesystem::path& run_folder, const MemoryCheckpointOptions& options,
                    const comm::Topology& topology, const comm::Communicator& world);
  ~MemoryCheckpoints();  ///< Waits for partner copies; images stay.
  MemoryCheckpoints(const MemoryCheckpoints&) = delete;
  MemoryCheckpoints& operator=(const MemoryCheckpoints&) = delete;

  /// Fills the state from the newest complete set of good images that is newer than `disk_step`,
  /// the newest checkpoint on disk (-1: none). Nodes without their images receive them from others.
  /// Logs each bad image and what is used instead. Returns nothing if no set can be used, and logs
  /// why if there were newer images. Rank 0 calls `accept` before any state is read. If the images
  /// refer to a base model, frozen weights are left as they are.
  std::optional<TrainState> resume(const State& state, std::int64_t disk_step,
                                   const Accept& accept = {});

  /// Describes the memory that reserve() has taken, and partner copies, in one line.
  std::string describe() const;

  /// Takes memory for the images of this state, with a TrainState's text of `text_bytes` or more.
  /// Discards images of earlier starts, except those up to the step that resume() used. Throws a
  /// user error if a node has too little memory.
  void reserve(const State& state, std::int64_t text_bytes = 0);

  /// Copies the state into this node's images, and begins to send partner copies. Waits for earlier
  /// partner copies first. `disk_step` is the newest committed checkpoint on disk; -1: none.
  void save(const State& state, const TrainState& progress, std::int64_t disk_step);

  /// Returns true if shards are copied to other nodes during the following steps.
  bool has_partner_copies() const;

  /// Waits for partner copies on all ranks. Throws on the ranks whose exchange failed.
  void wait();

  /// Removes the run's images: it does not need them any more.
  void remove();

 private:
  /// An image that this rank keeps, for two steps.
  struct OwnImages {
    KeptImage kept;
    std::vector<MemoryImage> slots;

    MemoryImage& older();
    MemoryImage& newer();
  };

  // memory_resume.cpp
  std::filesystem::path path_of(const FoundImage& image) const;
  std::vector<FoundImage> find_images() const;
  std::vector<std::string> find_bad_headers() const;
  std::vector<std::string> drop_other_sizes(std::span<const ImageKey> keys,
                                            std::vector<FoundImage>& found) const;
  std::vector<ImageKey> gather_keys(const State& state) const;
  MemoryImage open_image(const FoundImage& image) const;
  MemoryImage open_slot_for(const FoundImage& image) const;
  bool make_room(const std::vector<ImageTransfer>& transfers, const ImageSet& set,
                 std::vector<FoundImage>& found) const;
  bool receive(const ImageSet& set, std::vector<FoundImage>& found) const;
  std::vector<std::string> drop_bad(const ImageSet& set, bool has_frozen,
                                    std::vector<FoundImage>& found) const;
  TrainState load(const ImageSet& set, const State& state, const Accept& accept) const;

  std::set<std::filesystem::path> folders_on_host() const;
  void take_memory(std::int64_t text_bytes);
  void send_copies(std::int64_t text_bytes);

  MemoryCheckpointOptions options_;
  comm::Topology topology_;
  comm::Communicator world_;
  comm::Communicator copying_;    // the thread's
  std::string prefix_;            // every node's folder begins with it
  std::filesystem::path folder_;  // this node's
  std::string on_host_;           // the host's folders begin with it
  bool leads_node_;               // this is its node's lowest rank
  std::uint64_t run_ = 0;         // identities
  std::uint64_t start_ = 0;
  std::optional<ImageSet> resumed_;
  ImageKey key_;                 // this rank's
  std::vector<KeptImage> kept_;  // on all nodes
  std::vector<OwnImages> own_;
  std::int64_t text_room_ = 0;
  std::thread thread_;
  std::exception_ptr error_;
};

}  // namespace llamesh::checkpoint
