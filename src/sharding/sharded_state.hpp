#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::sharding {

/// Predicate for the parameters that a tensor of the state has values for. Null: all.
using HasParameter = bool (*)(const model::Parameter&);

/// One of the optimizer's moments, as stored.
struct Moment {
  std::string name;
  DType dtype = DType::f32;
  HasParameter has = nullptr;
  bool exchanged = false;  ///< summed over replicas that train apart
};

/// A rank's shards with one value per model element, and their memory kind.
struct ShardedTensor {
  std::string name;
  device::MemoryKind memory;
  /// Per unit: (shard_numel); empty for units that have none. A moment with only some of a unit's
  /// parameters is shorter: their pieces follow one another. A unit that is kept as codes has those
  /// (values_of()).
  std::vector<Tensor> shards;
  HasParameter has = nullptr;
  /// By parameter: elements in its unit's shard that this tensor leaves out before it. Empty: none.
  std::vector<std::int64_t> gaps = {};

  /// Returns a piece's elements. The tensor must have its parameter.
  Tensor of(std::size_t unit, const Piece& piece) const;
};

/// State that a rank keeps from step to step: its shards of the fp32 master weights, gradients and
/// optimizer moments (fp32 or bf16), all in one kind of memory, and weights in the compute dtype if
/// those are kept too. Of frozen units it has only the weights, in the compute dtype or as codes.
/// Fsdp gathers from it and reduces into it, the optimizer updates it, a checkpoint reads and fills
/// it. Replicas that train apart each have a state of their own; what they share is in outer().
class ShardedState {
 public:
  /// Collective over the mesh. `layout` is borrowed; `moments` are those of the optimizer, `outer`
  /// what replicas that train apart share. Everything starts at zero.
  ShardedState(const ShardLayout& layout, comm::DeviceMesh& mesh, const PrecisionOptions& precision,
               const std::vector<Moment>& moments, const ShardingOptions& sharding = {},
               const std::vector<Moment>& outer = {});

  /// Initializes this rank's master weights: ones for norms, normal values with standard deviation
  /// `stddev` for matrices. A value depends only on (seed, parameter name, element index in the
  /// whole parameter), so every mesh starts from the same bits.
  enum class Units : bool { all, trained };
  void initialize(std::uint64_t seed, float stddev, Units units = Units::all);

  const ShardLayout& layout() const { return layout_; }
  int rank() const { return rank_; }  ///< world rank
  /// Returns the compute dtype (precision.parameters).
  DType compute_dtype() const { return compute_dtype_; }
  /// Returns the fp32 weights of trained units.
  const ShardedTensor& masters() const { return masters_; }
  /// Returns the weights of frozen units, in the compute dtype or as codes.
  const ShardedTensor& frozen() const { return frozen_; }
  const ShardedTensor& gradients() const { return gradients_; }
  const std::vector<ShardedTensor>& moments() const { return moments_; }
  /// Returns what all replicas have alike, even where they train apart: the weights in their latest
  /// exchange, and its optimizer's moments. Empty if they do not.
  const std::vector<ShardedTensor>& outer() const { return outer_; }
  /// Returns what quantization has left out of this rank's gradients on their way to replicas, for
  /// the next step (sharding.error_feedback). Null: that is not kept.
  const ShardedTensor* gradient_errors() const {
    return gradient_errors_ ? &*gradient_errors_ : nullptr;
  }
  /// After a step without an update: forgets those errors, which are the dropped gradients'.
  void drop_gradient_errors();
  /// Returns the memory kind of masters, gradients and moments.
  device::MemoryKind memory() const { return masters_.memory; }
  /// Returns the stream that reads and writes them.
  device::Stream& stream() const { return device::stream_of(memory()); }

  /// A unit's weights as its ranks gather them.
  struct Weights {
    /// (shard_numel) on the device: the masters, or their compute-dtype copy if that is kept or the
    /// masters are offloaded. Empty if it is offloaded too. A unit that is kept as codes has
    /// those.
    Tensor shard;
    /// (shard_numel) in host memory, with offload: source for copies to the device, in the compute
    /// dtype or as codes. For fp32 these are the masters themselves.
    Tensor on_host;
    /// (shard_numel) compute-dtype copy in the same memory as the masters: `shard` or `on_host`.
    /// Code that changes masters must update it. Empty if there is none.
    Tensor copy;
    /// (padded_numel) in a shared window, if the unit's ranks share memory and shards are in the
    /// compute dtype: the shards are then always gathered. Otherwise empty.
    Tensor gathered;
  };
  const Weights& weights(std::size_t unit) const { return weights_[unit]; }
  /// Unit indices whose shards share a pair of groups: the shard group and the replica group. All
  /// are frozen, or none, and all are always fp32, or none, or kept as the same codes. Gradient
  /// shards of the held ones are contiguous, with zero padding, in memory for sums over the
  /// replicas, or over those that train apart.
  struct Group {
    std::vector<std::size_t> units;
    std::vector<std::size_t> held;  ///< those that this rank's stage holds
    comm::AxisSet sharded, replicas;
    bool frozen, fp32;
    std::optional<ops::CodeFormat> codes;
    bool stays_gathered = false;  ///< Weights::gathered, on every rank of the mesh or on none
    Tensor gradients = {};        ///< of the held units; empty if they are frozen
    /// Returns the dtype that its units are gathered in.
    DType dtype(DType compute_dtype) const { return fp32 ? DType::f32 : compute_dtype; }
  };
  const std::vector<Group>& groups() const { return groups_; }

 private:
  void group_units();
  ShardedTensor allocate(const Moment& moment, comm::DeviceMesh& mesh);
  void place(Group& group, comm::DeviceMesh& mesh, DType compute_dtype);
  void place_frozen(Group& group, comm::DeviceMesh& mesh, DType compute_dtype);
  void place_codes(const Group& group);
  void place_on_device(Group& group, comm::DeviceMesh::Axis& shard, DType dtype,
                       DType compute_dtype);

  const ShardLayout& layout_;
  int rank_;
  Offload offload_;
  DType compute_dtype_;
  bool keeps_copies_;           ///< in the compute dtype, on the device
  bool quantizes_within_node_;  ///< gathers within a node, so shards cannot stay gathered there
  std::vector<Group> groups_;
  std::vector<device::Buffer> buffers_;
  ShardedTensor masters_, gradients_, frozen_;
  std::vector<ShardedTensor> moments_, outer_;
  std::optional<ShardedTensor> gradient_errors_;
  std::vector<Weights> weights_;
};

}  // namespace llamesh::sharding
