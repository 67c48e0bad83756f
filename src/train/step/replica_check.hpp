#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "comm/mpi/communicator.hpp"
#include "device/buffer.hpp"
#include "sharding/sharded_state.hpp"
#include "train/health/tensor_hasher.hpp"
#include "train/step/trainer.hpp"

namespace llamesh::train {

/// Ranks that hold the same shards, but not the same bits in them.
struct Mismatch {
  std::size_t shards = 0;   ///< index in `replicas`
  std::vector<int> differ;  ///< from the majority; all ranks if there is none
  std::vector<int> agree;   ///< more than half of the ranks; empty: no majority
};

/// Finds mismatches from each rank's hashes of shards, rank after rank. `replicas` has, for each
/// hash, the axes along which the shards are the same. Pure.
std::vector<Mismatch> find_mismatches(std::span<const std::uint64_t> hashes,
                                      std::span<const comm::AxisSet> replicas,
                                      const comm::ParallelDims& dims);

/// Check that replicas hold the same fp32 master weights and moments. They start from the same bits
/// and take the same updates, so a difference is a memory fault or a bug. Replicas that train apart
/// share only what they exchange (ShardedState::outer()). Options: the inputs' `debug:` key. Shards
/// without replicas are not compared, nor are one unit's parts along the tensor axis.
class ReplicaCheck {
 public:
  /// Collective. Borrows all arguments.
  ReplicaCheck(const comm::Communicator& world, const Setup& setup, comm::DeviceMesh& mesh,
               Trainer& trainer);

  /// Describes the comparison in one line; empty if it is off.
  std::string describe() const;
  /// Returns true if replicas must be compared after the trainer's last step.
  bool due() const;
  /// Compares after the trainer's last step, in one small collective over the world; does nothing
  /// if already done or off. Returns a line for each healed difference. A difference that is not
  /// healed throws (exit 75) on the first rank that differs; the others throw comm::PeerFailure.
  /// Collective.
  std::vector<std::string> check();
  /// Compares again even if the state after that step was compared already: a fault may have
  /// changed it since.
  std::vector<std::string> check_again();

 private:
  /// Shards that are the same along some axes.
  struct Shared {
    const sharding::ShardedState::Group& group;
    comm::AxisSet along;
    bool outer;  ///< ShardedState::outer(), else weights and moments
  };

  bool has_replicas(const Shared& shared) const;
  device::MemoryKind memory_of(const Shared& shared) const;
  void for_each_piece(const Shared& shared, const std::function<void(const Tensor&)>& visit) const;
  std::uint64_t hash(const Shared& shared);
  std::vector<std::uint64_t> hashes_of_all();
  std::string describe(const Mismatch& mismatch) const;
  void stop(const std::vector<Mismatch>& found) const;
  void heal(const Mismatch& mismatch);

  const comm::Communicator& world_;
  const Setup& setup_;
  comm::DeviceMesh& mesh_;
  Trainer& trainer_;
  const sharding::ShardedState& state_;
  std::vector<Shared> shared_;
  TensorHasher hasher_;
  std::int64_t checked_ = -1;  ///< last step compared
};

}  // namespace llamesh::train
