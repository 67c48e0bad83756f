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
/// gradients and of the optimizer's moments. Fsdp gathers from it and reduces into it, the
/// optimizer updates it, a checkpoint reads and fills it.
class ShardedState {
 public:
  /// Collective over the mesh. `layout` is borrowed; `moments` are the names of the optimizer's.
  /// All is zero at first.
  ShardedState(const ShardLayout& layout, comm::DeviceMesh& mesh, const PrecisionOptions& precision,
               const std::vector<std::string>& moments);

  /// Sets this rank's master weights to initial values: ones for norms, normal numbers with
  /// deviation `stddev` for matrices, each a function of (seed, parameter name, element of the
  /// whole parameter) alone, so that every mesh starts from the same bits.
  void initialize(std::uint64_t seed, float stddev);

  const ShardLayout& layout() const { return layout_; }
  int rank() const { return rank_; }  ///< in the world
  const ShardedTensor& masters() const { return masters_; }
  const ShardedTensor& gradients() const { return gradients_; }
  const std::vector<ShardedTensor>& moments() const { return moments_; }

  /// Where the ranks over which a unit is sharded share memory and compute in fp32, their master
  /// shards are contiguous in one shared window, (padded_numel): gathered is what they
  /// always are. Elsewhere no tensor.
  const Tensor& gathered_masters(std::size_t unit) const { return gathered_masters_[unit]; }
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

  const ShardLayout& layout_;
  int rank_;
  std::vector<Group> groups_;
  std::vector<device::Buffer> buffers_;
  ShardedTensor masters_, gradients_;
  std::vector<ShardedTensor> moments_;
  std::vector<Tensor> gathered_masters_;
};

}  // namespace llamesh::sharding
