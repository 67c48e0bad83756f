#pragma once

#include <vector>

#include "comm/device_mesh.hpp"
#include "device/buffer.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::sharding {

/// Completes those gradients of which each rank has a summand (Placement::partial), all along the
/// same axes in one all-reduce.
class PartialSums {
 public:
  /// Collective over the mesh. `state` and `mesh` are borrowed.
  PartialSums(const ShardedState& state, comm::DeviceMesh& mesh);

  /// Before and after it the gradients are ready for work in the stream of the state.
  void complete();

 private:
  /// The pieces of this rank's gradient shards that are summands along the same axes, and room on
  /// the device for all of them side by side.
  struct Along {
    comm::DeviceMesh::Axis& axis;
    std::vector<Tensor> pieces;
    device::Buffer buffer;
  };
  void complete(Along& sums);

  const ShardedState& state_;
  std::vector<Along> along_;
};

}  // namespace llamesh::sharding
