#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "train/engine/engine.hpp"
#include "train/health/tensor_hasher.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Ranks, at least one of which computed wrong bits.
struct ReplayFault {
  std::vector<int> ranks;       ///< one, or several that exchange values within a micro-batch
  std::int64_t difference = 0;  ///< their first (ReplayCheck::difference())
};

/// Finds faults from each rank's first difference. Along the axes in `exchange`, ranks exchange
/// values within a micro-batch, so a fault spreads. In such a group, only the ranks whose bits
/// differ first count. Pipeline stages have no common order: of each, those ranks count. Pure.
std::vector<ReplayFault> find_faults(std::span<const std::int64_t> differences,
                                     comm::AxisSet exchange, const comm::ParallelDims& dims);

/// Check for wrong computation that needs no replicas: every `debug.replay_every` steps, each rank
/// computes the step's first micro-batch twice, with the same weights and tokens. A rank compares
/// the bits of its loss and, unit by unit, of its gradients before any reduction. All sums are
/// taken in a fixed order, so a difference is a fault of the machine or a bug. The step's results
/// are the same as without the check.
class ReplayCheck {
 public:
  /// Borrows all arguments.
  ReplayCheck(const comm::Communicator& world, const Setup& setup, Engine& engine);
  ReplayCheck(const ReplayCheck&) = delete;
  ReplayCheck& operator=(const ReplayCheck&) = delete;

  /// Describes the check in one line; empty if it is off.
  std::string describe() const;
  /// Returns true if step `step` (from 1) computes a micro-batch twice.
  bool due(std::int64_t step) const;
  /// Computes a step's first micro-batch ahead of Engine::forward_backward(), with the same `scale`
  /// and number of micro-batches. Waits for the device.
  void replay(const model::Batch& first, float scale, std::int64_t micro_batches);
  /// Call it after each micro-batch of Engine::forward_backward(). After the first one since
  /// replay(), waits for the device and compares.
  void on_micro_batch();
  /// Returns this rank's first difference since replay(): 0 none, 1 the loss, 2 + i U + u the
  /// gradient of unit u of U, the i-th that this rank's backward pass completes.
  std::int64_t difference() const { return difference_; }
  /// Returns a line on what differs in step `step`, empty if nothing does, given each rank's
  /// difference(). With OnMismatch::stop a difference throws (exit 75) on the rank at fault; the
  /// others throw comm::PeerFailure. Collective.
  std::string judge(std::int64_t step, std::span<const std::int64_t> differences,
                    OnMismatch on_mismatch);
  /// Describes the differences that were healed since the start; empty if there were none.
  std::string healed() const;

 private:
  /// Results of one pass over the micro-batch.
  struct Results {
    std::optional<double> loss = {};
    std::vector<std::size_t> units = {};     ///< in the order of the backward pass
    std::vector<std::uint64_t> hashes = {};  ///< of their gradients
  };
  void record_into(Results& results);
  void note_own_loss();
  std::int64_t compare() const;
  bool on_one_host(const ReplayFault& fault) const;
  std::string describe(std::int64_t difference) const;
  std::string describe(const ReplayFault& fault) const;

  const comm::Communicator& world_;
  const Setup& setup_;
  Engine& engine_;
  comm::AxisSet exchange_;
  TensorHasher hasher_;
  Results replayed_, own_;
  bool comparing_ = false;  ///< between replay() and the end of the step's first micro-batch
  std::int64_t difference_ = 0;
  std::int64_t times_healed_ = 0;
  std::string last_healed_;
};

}  // namespace llamesh::train
