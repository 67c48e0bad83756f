#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::sharding {

/// Reducer for gradients that are partial sums (Placement::partial): one all-reduce per set of
/// axes.
class PartialSums {
 public:
  /// The sums are over what the ranks have left in their shards after a step, or over what they
  /// have of each unit in each micro-batch, before anything else is added: then the bits do not
  /// depend on how many parts a rank has computed itself.
  enum class When : bool { at_the_end, in_each_micro_batch };

  /// Collective over the mesh. `state` and `mesh` are borrowed.
  PartialSums(const ShardedState& state, comm::DeviceMesh& mesh, When when);

  /// After a step, on gradients that are ready for work on the state's stream, and leaves them so.
  void complete();
  /// In a micro-batch, on a unit's whole gradients (padded_numel), in the compute stream.
  void complete(std::size_t unit, const Tensor& gradients);

 private:
  /// Pieces of this rank's gradient shards that are partial along the same axes, and a device
  /// buffer that holds all of them side by side, or a unit's.
  struct Along {
    comm::AxisSet axes;
    comm::DeviceMesh::Axis& axis;
    std::vector<Tensor> pieces;
    device::Buffer buffer;
  };
  std::int64_t numel_in_unit(std::size_t unit, comm::AxisSet axes) const;
  static void add_up(Along& sums, std::span<const Tensor> pieces, device::MemoryKind memory);

  const ShardedState& state_;
  When when_;
  std::vector<Along> along_;
};

}  // namespace llamesh::sharding
