#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/device_mesh.hpp"
#include "device/buffer.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::sharding {

/// A rank's shards of one fp32 number for each element of the model, and where they are stored.
struct ShardedTensor {
  std::string name;
  device::MemoryKind memory;
  std::vector<Tensor> shards;  ///< by unit: (shard_numel)
};

/// Owns what a rank keeps from step to step: its shards of the fp32 master weights, of the
/// gradients and of the optimizer's moments, all in one memory, and of the weights in the compute
/// dtype where those are kept too. Fsdp gathers from it and reduces into it, the optimizer updates
/// it, a checkpoint reads and fills it.
class ShardedState {
 public:
  /// Collective over the mesh. `layout` is borrowed; `moments` are the names of the optimizer's.
  /// All is zero at first.
  ShardedState(const ShardLayout& layout, comm::DeviceMesh& mesh, const PrecisionOptions& precision,
               const std::vector<std::string>& moments, const ShardingOptions& sharding = {});

  /// Sets this rank's master weights to initial values: ones for norms, normal numbers with
  /// deviation `stddev` for matrices, each a function of (seed, parameter name, element of the
  /// whole parameter) alone, so that every mesh starts from the same bits.
  void initialize(std::uint64_t seed, float stddev);

  const ShardLayout& layout() const { return layout_; }
  int rank() const { return rank_; }  ///< in the world
  const ShardedTensor& masters() const { return masters_; }
  const ShardedTensor& gradients() const { return gradients_; }
  const std::vector<ShardedTensor>& moments() const { return moments_; }
  /// Of all three.
  device::MemoryKind memory() const { return masters_.memory; }
  /// The stream whose work reads and writes them.
  device::Stream& stream() const { return device::stream_of(memory()); }

  /// A unit's weights as its ranks gather them.
  struct Weights {
    /// (shard_numel) on the device: the masters, or their copy in the compute dtype where that is
    /// kept or the masters are offloaded; none where it is offloaded too.
    Tensor shard;
    /// (shard_numel) with offload, in host memory: what is copied to the device, in the compute
    /// dtype; the masters themselves where that is fp32.
    Tensor on_host;
    /// (shard_numel), `shard` or `on_host`: the copy in the compute dtype beside the masters, in
    /// the same memory. Who changes masters changes it too. None where there is none.
    Tensor copy;
    /// Where the ranks over which the unit is sharded share memory, and the shards are in the
    /// compute dtype: (padded_numel), all of them in one shared window. Gathered is what they
    /// always are. Elsewhere no tensor.
    Tensor gathered;
  };
  const Weights& weights(std::size_t unit) const { return weights_[unit]; }
  /// The units, by number, whose shards have one pair of groups: that over which they are sharded,
  /// and that of their replicas. Their gradient shards follow one another, padding zero.
  struct Group {
    std::vector<std::size_t> units;
    comm::AxisSet sharded, replicas;
    Tensor gradients;
  };
  const std::vector<Group>& groups() const { return groups_; }

 private:
  void group_units();
  void place(Group& group, comm::DeviceMesh& mesh, DType compute_dtype);
  void place_on_device(const Group& group, comm::DeviceMesh::Axis& shard, DType dtype,
                       DType compute_dtype);

  const ShardLayout& layout_;
  int rank_;
  Offload offload_;
  bool keeps_copies_;  ///< in the compute dtype, on the device
  std::vector<Group> groups_;
  std::vector<device::Buffer> buffers_;
  ShardedTensor masters_, gradients_;
  std::vector<ShardedTensor> moments_;
  std::vector<Weights> weights_;
};

}  // namespace llamesh::sharding
