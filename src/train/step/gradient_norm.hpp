#pragma once

#include <span>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "sharding/sharded_state.hpp"
#include "train/records/step_part.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// The gradient norm, from each rank's part. Replicas that train apart have a norm each.
class GradientNorm {
 public:
  /// Borrows the arguments.
  GradientNorm(const comm::Communicator& world, const Setup& setup,
               const sharding::ShardedState& state);

  /// Sets this rank's share in its part for the record; waits for the passes. Collective if the run
  /// has the same bits on every mesh.
  void contribute(StepPart& mine);
  /// Returns the norm, with the same bits on every rank: the root mean square over the replicas.
  double of(std::span<const StepPart> parts) const;
  /// Returns the norm of this rank's replica.
  double of_replica(std::span<const StepPart> parts) const;

 private:
  const comm::Communicator& world_;
  const Setup& setup_;
  const sharding::ShardedState& state_;
  int replicas_;              ///< that train apart
  std::vector<int> replica_;  ///< world ranks of this one
  int exponent_ = 0;          ///< for the squares' units
};

}  // namespace llamesh::train
