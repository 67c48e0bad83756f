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

#include "checkpoint/format/checkpoint_options.hpp"
#include "checkpoint/format/state.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/format/state_writer.hpp"
#include "checkpoint/store/lease.hpp"
#include "checkpoint/store/store_folder.hpp"
#include "comm/mpi/communicator.hpp"
#include "device/buffer.hpp"

namespace llamesh::checkpoint {

/// Store for a run's checkpoints: commits new ones, finds the newest good one, removes old ones.
/// All calls are collective over the world. A single rename commits a checkpoint; a process killed
/// at any instant leaves earlier ones unchanged (docs/checkpoint-format.md).
class Store {
 public:
  /// Creates `folder` (<run>/checkpoints), takes a lease on it, and removes leftovers from killed
  /// saves. Borrows the world until the constructor returns.
  Store(std::filesystem::path folder, const CheckpointOptions& options,
        const comm::Communicator& world);
  ~Store();  ///< Waits for a save in progress; logs its error if wait() was not called.
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Saves, and returns the checkpoint's folder. With options.async it returns once the previous
  /// save has ended and the shards are copied; errors surface at the next save() or wait(). The new
  /// checkpoint is read back and verified before anything older is removed. Only verified
  /// checkpoints count toward `keep`; damaged ones are quarantined. Those of the steps `best`, the
  /// best first, are also kept, and the file BEST names the first of them. Throws exit 74 on
  /// failure; earlier checkpoints remain.
  std::filesystem::path save(const State& state, const TrainState& progress,
                             std::vector<std::int64_t> best = {});
  /// Waits for the save in progress, and throws its error.
  void wait();

  /// Returns the newest step that this launch has committed; -1: none.
  std::int64_t committed_step() const { return committed_step_; }
  /// Returns the longest save time so far, in seconds.
  double slowest_save() const { return slowest_save_; }

  /// Fills the state according to `mode` (CheckpointOptions::resume). "none": does nothing. "auto":
  /// loads the newest good checkpoint, if there are any. A path: loads that checkpoint or run.
  /// Throws exit 78 if there are checkpoints but no good one, or if one does not fit the model.
  /// Rank 0 calls `accept` before any state is read. With options.async it also allocates the shard
  /// copies, so that the first save need not.
  std::optional<TrainState> resume(const State& state, const std::string& mode,
                                   const Accept& accept = {});
  /// Throws exit 74 if the folder's file system has no room for a checkpoint of this state.
  void check_room(const State& state);
  /// With options.async, allocates the copies of these shards. resume() does so for trained ones.
  void reserve(const State& state);

 private:
  void write(const State& state, const TrainState& progress, std::span<const std::int64_t> best);
  std::string prepare(const State& state, const TrainState& progress) const;
  void require_room(const State& state) const;
  void commit(const std::filesystem::path& partial, const Manifest& manifest) const;
  void prune(const Manifest& newest, std::span<const std::int64_t> best);
  std::vector<std::int64_t> steps_to_remove(std::span<const std::int64_t> steps,
                                            std::span<const std::int64_t> best);
  bool is_good(std::int64_t step);
  void on_rank_0_quietly(const std::function<void()>& work) const;
  State copy(const State& state);

  std::filesystem::path folder_;
  CheckpointOptions options_;
  comm::Communicator world_;
  std::unique_ptr<Lease> lease_;     // rank 0
  std::set<std::int64_t> verified_;  // steps fully verified since this launch
  device::Buffer copy_;              // shard copies for an asynchronous save
  // Written by the thread, read at any time.
  std::atomic<double> slowest_save_{0};
  std::atomic<std::int64_t> committed_step_{-1};
  std::thread thread_;
  std::exception_ptr error_;
};

}  // namespace llamesh::checkpoint
