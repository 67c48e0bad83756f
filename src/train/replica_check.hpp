#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/device_mesh.hpp"
#include "device/buffer.hpp"
#include "sharding/sharded_state.hpp"
#include "train/trainer.hpp"

namespace llamesh::train {

/// Ranks that hold the same shards, and not the same bits in them.
struct Mismatch {
  std::size_t group = 0;    ///< of ShardedState::groups()
  std::vector<int> differ;  ///< from the majority; all of them where there is none
  std::vector<int> agree;   ///< more than half of them; empty: there is no majority
};

/// By each rank's hash of each group, rank after rank. `replicas`: by group, the axes along which
/// its shards are the same. Pure.
std::vector<Mismatch> find_mismatches(std::span<const std::uint64_t> hashes,
                                      std::span<const comm::AxisSet> replicas,
                                      const comm::ParallelDims& dims);

/// Compares what replicas hold, the fp32 master weights and moments of the same shards: they start
/// from the same bits and take the same updates, so a difference is a fault of a machine's memory,
/// or a bug. By `debug:` of the inputs. A shard without replicas is not compared, nor are the parts
/// of one unit along the tensor axis.
class ReplicaCheck {
 public:
  /// All are borrowed. Collective.
  ReplicaCheck(const comm::Communicator& world, const Setup& setup, comm::DeviceMesh& mesh,
               Trainer& trainer);

  /// One line on what is compared; empty where nothing is asked for.
  std::string describe() const;
  /// Whether the trainer's last step is one of those after which replicas are compared.
  bool due() const;
  /// Compares after the trainer's last step, in one small collective of the world; nothing where
  /// that is done already, or never to be done. Returns a line for each difference that was healed.
  /// One that is not throws (exit 75), on the first rank that differs; the others throw
  /// comm::PeerFailure. Collective.
  std::vector<std::string> check();
  /// The same even if the state after that step is compared already: it may have changed since, by
  /// a fault.
  std::vector<std::string> check_again();

 private:
  using Group = sharding::ShardedState::Group;

  bool has_replicas(const Group& group) const;
  void for_each_piece(const Group& group, const std::function<void(const Tensor&)>& visit) const;
  std::uint64_t hash(const Group& group);
  std::vector<std::uint64_t> hashes_of_all();
  std::string describe(const Mismatch& mismatch) const;
  void stop(const std::vector<Mismatch>& found) const;
  void heal(const Mismatch& mismatch);

  const comm::Communicator& world_;
  const Setup& setup_;
  comm::DeviceMesh& mesh_;
  Trainer& trainer_;
  const sharding::ShardedState& state_;
  std::vector<comm::AxisSet> replicas_;  ///< by group
  device::Buffer piece_;                 ///< of a GPU's state, on the host
  std::int64_t checked_ = -1;            ///< the step compared last
};

}  // namespace llamesh::train
