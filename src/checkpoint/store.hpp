#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint_options.hpp"
#include "checkpoint/lease.hpp"
#include "checkpoint/state.hpp"
#include "checkpoint/state_reader.hpp"
#include "checkpoint/state_writer.hpp"
#include "checkpoint/store_folder.hpp"
#include "comm/communicator.hpp"
#include "device/buffer.hpp"

namespace llamesh::checkpoint {

/// The checkpoints of a run: commits new ones, finds the newest good one, removes old ones. All
/// calls are collective over the world. A checkpoint is committed by one rename; a process that is
/// killed at any instant leaves the former ones unchanged (docs/checkpoint-format.md).
class Store {
 public:
  /// `folder` is <run>/checkpoints; it is created, a lease taken on it, and what killed saves have
  /// left in it removed. The world is borrowed until the constructor returns.
  Store(std::filesystem::path folder, const CheckpointOptions& options,
        const comm::Communicator& world);
  ~Store();  ///< Waits for a save in progress; logs its error if wait() was not called.
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Saves, and returns the checkpoint's folder. With options.async it returns when the shards are
  /// copied, once the save before has ended; errors surface at the next save() or wait().
  /// Before anything older is removed, the new checkpoint is read back and verified. Only verified
  /// ones count as kept; damaged ones are quarantined.
  /// Throws exit 74 when it fails: the former checkpoints remain.
  std::filesystem::path save(const State& state, const Progress& progress);
  /// Waits for the save in progress, and throws its error.
  void wait();

  /// The duration of the slowest completed save so far, in seconds.
  double slowest_save() const { return slowest_save_; }

  /// Fills the state as `mode` (CheckpointOptions::resume) says: "none": nothing; "auto": from the
  /// newest good checkpoint, if there is any at all; else from the checkpoint or run of that path.
  /// Throws exit 78 when there are checkpoints but none is good, or when one does not fit the
  /// model; rank 0 calls `accept` before a state is read. With options.async it also allocates the
  /// copies of the shards, so that the first save need not.
  std::optional<Progress> resume(const State& state, const std::string& mode,
                                 const Accept& accept = {});

 private:
  void write(const State& state, const Progress& progress);
  std::string prepare(const State& state, const Progress& progress) const;
  void commit(const std::filesystem::path& partial, const Manifest& manifest) const;
  void prune(const Manifest& newest);
  std::vector<std::int64_t> steps_to_remove(std::span<const std::int64_t> steps);
  bool is_good(std::int64_t step);
  void on_rank_0_quietly(const std::function<void()>& work) const;
  void reserve(const State& state);
  State copy(const State& state);

  std::filesystem::path folder_;
  CheckpointOptions options_;
  comm::Communicator world_;
  std::unique_ptr<Lease> lease_;         // rank 0
  std::set<std::int64_t> verified_;      // steps whose every byte this start has read
  device::Buffer copy_;                  // of the shards, for an asynchronous save
  std::atomic<double> slowest_save_{0};  // written by the thread, read at any time
  std::thread thread_;
  std::exception_ptr error_;
};

}  // namespace llamesh::checkpoint
