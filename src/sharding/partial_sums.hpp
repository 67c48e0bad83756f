#pragma once

#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::sharding {

/// Reducer for gradients that are partial sums (Placement::partial): one all-reduce per set of
/// axes.
class PartialSums {
 public:
  /// Collective over the mesh. `state` and `mesh` are borrowed.
  PartialSums(const ShardedState& state, comm::DeviceMesh& mesh);

  /// Runs on gradients that are ready for work on the state's stream, and leaves them so.
  void complete();

 private:
  /// Pieces of this rank's gradient shards that are partial along the same axes, and a device
  /// buffer that holds all of them side by side.
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
