#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/async_copy.hpp"
#include "device/device.hpp"
#include "model/layers/weights.hpp"
#include "sharding/fp8_gather.hpp"
#include "sharding/micro_batch_tree.hpp"
#include "sharding/partial_sums.hpp"
#include "sharding/quantized_collectives.hpp"
#include "sharding/sharded_state.hpp"
#include "sharding/sharding_options.hpp"
#include "sharding/slot_pool.hpp"

namespace llamesh::sharding {

/// A micro-batch's position in its optimizer step.
struct MicroBatch {
  std::int64_t index = 0, count = 1;
  bool discarded = false;  ///< its gradients are not reduced; the first micro-batch follows

  /// Its gradients overwrite those from the previous step.
  bool first() const { return index == 0; }
  /// Its gradients complete the step and are reduced over the replicas.
  bool last() const { return index + 1 == count; }
};

/// Fully sharded data parallelism: schedules gathers and reductions for the units in a
/// ShardedState, over the groups that their placements name.
///
/// A unit is gathered when the model enters one of its modules and released when it leaves; the
/// next units are prefetched meanwhile. With Reshard::to_group, each rank keeps a secondary shard
/// in the compute dtype from the forward to the backward pass, which gathers from those shards. The
/// units that the next micro-batch in a step enters first stay gathered, as many as may be gathered
/// at a time. When the backward pass leaves a unit, its gradients are reduce-scattered and added to
/// the shard while computation continues; on the step's last micro-batch they are then all-reduced
/// over the replicas. With Reduce::last they stay whole on the rank, in the reduce dtype, and the
/// last micro-batch's reduction takes their sum; units with Reshard::after_backward then also stay
/// gathered until that micro-batch's backward pass. Where they add up as a tree, partial sums of
/// micro-batches take the memory of as many more gradient shards as the binary logarithm of their
/// number, less one; where gradients add up whole on the rank, of as many more whole units.
/// Gradients that are partial sums along other axes are completed in one all-reduce at the end of
/// the step, or in each micro-batch (PartialSums::When). A group with one rank communicates
/// nothing.
///
/// With the state in host memory, weights are copied to the device before each gather, or once the
/// optimizer has updated them. A unit's gradients are copied to the host once reduced, and back for
/// accumulation in the next micro-batch. Two streams, one per direction, overlap these copies with
/// computation.
///
/// With sharding.gather and sharding.reduce_dtype, weights and gradients cross nodes as codes
/// (quantized_collectives.hpp), or weights as the e4m3 numbers that linear layers multiply by
/// (fp8_gather.hpp).
///
/// A frozen unit is gathered like any other, and has no gradients: nothing is reduced. Units that
/// another pipeline stage holds are left out.
///
/// With LLAMESH_POISON=1 in the environment, gathered parameters turn into NaNs on release (unless
/// other ranks read the same memory), and gradients are NaN until written: a use at the wrong time
/// then shows in the loss. This costs one pass over that memory each time.
class Fsdp final : public model::Weights {
 public:
  /// Collective over the mesh. `state` and `mesh` are borrowed. The gradients of this many
  /// micro-batches, a power of two, add up as a balanced binary tree; 1: each step's one by one.
  Fsdp(ShardedState& state, comm::DeviceMesh& mesh, const ShardingOptions& sharding,
       const PrecisionOptions& precision, std::int64_t tree_micro_batches = 1,
       PartialSums::When partial_sums = PartialSums::When::at_the_end);
  ~Fsdp() override;  ///< Waits for collectives in flight.

  /// Call before each training micro-batch's forward pass.
  void begin_micro_batch(const MicroBatch& place) { micro_batch_ = place; }

  /// Callback with a unit's complete local gradients (numel) of a micro-batch, before they are
  /// reduced over any ranks or discarded. The work that writes them is queued on the compute
  /// stream.
  using OnGradients =
      std::function<void(const MicroBatch& micro_batch, std::size_t unit, const Tensor& gradients)>;
  /// Calls `on_gradients` when a backward pass leaves a unit that is trained. Empty: no call.
  void observe_gradients(OnGradients on_gradients) { on_gradients_ = std::move(on_gradients); }
  /// Makes later work on the state's stream see all units' gradients in the shards. Rethrows errors
  /// from the reductions.
  void finish_gradients();
  /// Call after work on the state's stream has changed a unit's masters and their copy: the next
  /// gather waits for that work.
  void on_master_weights_updated(std::size_t unit);
  /// Like on_master_weights_updated() for all units if only the masters changed: recreates their
  /// copies.
  void on_master_weights_loaded();
  /// Returns what quantization has done to gathered weights and to reduced gradients since the last
  /// call. Waits for the exchanges.
  QuantizedTraffic take_quantization_squares();
  /// Returns the seconds for which copies to and from the host have blocked the compute stream so
  /// far.
  double seconds_exposed_by_copies() const;

  // model::Weights
  void enter(model::ModuleId module, model::Pass pass) override;
  void leave(model::ModuleId module, model::Pass pass) override;
  Tensor parameter(model::ParameterId id) override;
  Tensor scales(model::ParameterId id) override;
  model::GradientSlot gradient(model::ParameterId id) override;
  void no_gradient(model::ParameterId id) override;

 private:
  /// Communication axes for units with the same placement, and the buffers that these units take
  /// turns in.
  struct Group {
    comm::DeviceMesh::Axis& shard;
    comm::DeviceMesh::Axis& reductions;  ///< the same ranks, or with quantization those on a node
    comm::DeviceMesh::Axis& replicas;
    SlotPool gathered_slots;  ///< in bytes
    SlotPool gradient_slots;
    comm::DeviceMesh::Axis* secondary;  ///< ranks that hold the secondary shards; null: none
    /// Separate slots for units gathered over these ranks if they share memory.
    std::optional<SlotPool> secondary_slots;
    // With the state in host memory: shards on the device.
    SlotPool weight_shards;
    SlotPool gradient_shards;
    SlotPool leaves;  ///< in the tree, for a unit whose gradients add up on this rank
    // For what crosses nodes, is to be quantized anyway, or is kept as codes.
    bool keeps_codes = false;
    std::optional<QuantizedGather> quantized_gather = {};
    std::optional<Fp8Gather> fp8_gather = {};
    std::optional<SlotPool> other_slots = {};                 ///< for Fp8Gather::Whole::others
    std::optional<QuantizedGather> quantized_secondary = {};  ///< from secondary shards as codes
    std::optional<QuantizedReduceScatter> quantized_reductions = {};
    std::optional<QuantizedAllReduce> quantized_replicas = {};
  };
  /// Source shard for a gather, with its axis and destination slots.
  struct Source {
    comm::DeviceMesh::Axis& axis;
    SlotPool& slots;
    Tensor shard;
  };
  struct UnitState {
    Group* group;
    DType dtype;                  ///< of the gathered weights; e4m3: the group's fp8_gather's
    bool held;                    ///< by this rank's stage; no pass enters any other unit
    Tensor gradient;              ///< (shard_numel) fp32, in the state or its device copy
    std::vector<Piece> exact;     ///< what replicas add up in fp32 even if they quantize
    device::Event gradient_here;  ///< that copy can be added to
    device::Event weights_here;   ///< the device holds this step's weights
    Tensor parameters;            ///< unsharded: (padded_numel), while gathered
    Tensor
        others;  ///< beside e4m3 parameters: Fp8Gather::Whole::others, also with a secondary shard
    device::Buffer secondary;    ///< secondary shard: (padded_numel / ranks) of dtype, or codes
    bool has_secondary = false;  ///< valid for this micro-batch's forward pass
    Tensor gradients;  ///< unsharded: (padded_numel) reduce dtype, from first write to reduction
    Tensor total;      ///< unsharded, from the step's first micro-batch on: the tree's sum 0
    std::vector<device::Buffer> sums;  ///< the tree's sums from 1 on: (shard_numel or padded_numel)
    bool stays_gathered;               ///< its shards are in shared memory, in the compute dtype
    int entered = 0;                   ///< current nesting depth
    bool gathered = false;
    device::Event ready;        ///< when the gather is done
    device::Event reduced;      ///< when the gradient shard is done
    std::vector<bool> written;  ///< per parameter in the unit: its gradient has been written to
  };

  /// Units [first, last) that a module unshards: one, several with different groups that are
  /// gathered together, or none.
  struct UnitRange {
    std::size_t first = 0, last = 0;
  };

  /// Calls visit(u) for the units in a range that this rank's stage holds.
  template <class Visit>
  void for_each_held(UnitRange range, const Visit& visit) {
    for (auto u = range.first; u < range.last; ++u)
      if (units_[u].held) visit(u);
  }
  bool holds_any(UnitRange range) const;
  Group make_group(const ShardedState::Group& units, const ShardingOptions& sharding);
  void quantize_exchanges(Group& group, const ShardedState::Group& units,
                          const ShardingOptions& sharding);
  bool is_exact(model::ParameterId id) const;
  bool quantizes_reductions(const ShardedState::Group& units, const ShardingOptions& sharding);
  comm::DeviceMesh::Axis* secondary_axis(const ShardedState::Group& units);
  void unshard(std::size_t unit, model::Pass pass);
  void gather(std::size_t unit, model::Pass pass);
  Source source_of(std::size_t unit) const;
  device::Event gather_from(std::size_t unit, comm::Collectives& collectives, const Tensor& shard,
                            const device::Event& free);
  std::int64_t others_numel(std::size_t unit) const;
  void take_others(std::size_t unit, device::Stream& stream);
  void release_others(std::size_t unit);
  device::Event upload_weights(std::size_t unit, const Tensor& to, const device::Event& free);
  void prefetch(UnitRange units, model::Pass pass);
  std::size_t units_between_micro_batches();
  bool stays_unsharded(std::size_t unit, model::Pass pass) const;
  void reshard(std::size_t unit, model::Pass pass);
  void keep_secondary_shard(std::size_t unit);
  void keep_secondary_codes(std::size_t unit);
  Tensor secondary_shard(const UnitState& unit) const;
  std::int64_t gathered_bytes(std::size_t unit) const;
  void allocate_gradients(std::size_t unit);
  void allocate_sums(std::size_t unit, std::int64_t micro_batches);
  void reduce_deferred();
  device::Event reduce_over_replicas(std::size_t unit);
  Tensor place_for_gradients(std::size_t unit);
  void fetch_gradient_shard(std::size_t unit);
  device::Event store_gradient_shard(std::size_t unit);
  void reduce(std::size_t unit);
  void reduce_over_shards(std::size_t unit);
  void add_to_total(std::size_t unit);
  Tensor sum_of(std::size_t unit, int sum) const;
  void discard(std::size_t unit);
  /// Returns this rank's part of a parameter, as a view into the unsharded unit.
  Tensor view(model::ParameterId id, const Tensor& unsharded) const;
  /// Returns true if the unit's replicas are reduced one unit later. NCCL starts kernels in the
  /// order of their launches, over all axes: what is launched behind the replicas' reduction would
  /// wait for the one over the shard axis to end. By then it has.
  bool defers_replicas(const UnitState& unit) const {
    return device::kind_of_kernels() == device::Kind::cuda && !copies_ &&
           unit.group->shard.size > 1;
  }
  bool accumulates_in_place(const UnitState& unit) const {
    return unit.group->shard.size == 1 && reduce_dtype_ == DType::f32;
  }
  /// Returns true if the unit's gradients stay whole on this rank until the last micro-batch.
  bool accumulates_whole(const UnitState& unit) const {
    return reduce_rule_ == Reduce::last && unit.group->shard.size > 1;
  }
  /// Returns true if micro-batches' gradients add up as a tree on this rank.
  bool has_tree_here(const UnitState& unit) const {
    return adds_as_tree_ && (accumulates_in_place(unit) || accumulates_whole(unit));
  }
  /// Returns true if the unit's gradients leave the rank in this micro-batch.
  bool reduces_now(const UnitState& unit) const {
    return micro_batch_.last() || !accumulates_whole(unit);
  }
  /// Returns where this micro-batch's reduction goes.
  TreePlace place_of_reduction(const UnitState& unit) const {
    if (accumulates_whole(unit)) return {.sum = 0, .adds = false, .carries = 0};
    if (adds_as_tree_) return tree_place(micro_batch_.index);
    return {.sum = 0, .adds = !micro_batch_.first(), .carries = 0};
  }

  const ShardedState& state_;
  const ShardLayout& layout_;
  comm::DeviceMesh& mesh_;
  device::Stream& compute_ = device::compute_stream();
  Reshard reshard_rule_;
  Reduce reduce_rule_;
  int prefetch_ahead_;
  std::int64_t prefetch_limit_;
  DType compute_dtype_;
  DType reduce_dtype_;
  model::ModuleId backward_end_;
  bool adds_as_tree_;  ///< the gradients of a step's micro-batches
  const bool poison_;  ///< LLAMESH_POISON=1: released memory turns into NaNs
  MicroBatch micro_batch_;
  OnGradients on_gradients_;
  std::vector<UnitRange> units_of_module_;  ///< per module
  std::vector<std::size_t> index_in_unit_;  ///< per parameter
  std::deque<Group> groups_;                ///< a deque keeps addresses stable
  std::vector<UnitState> units_;
  std::size_t num_persistent_units_;  ///< units before this one stay gathered between micro-batches
  PartialSums partial_sums_;
  std::optional<device::CopyStreams> copies_;  ///< with the state in host memory
  /// The last unit that is reduced over the shard axis, if its replicas are yet to be.
  std::optional<std::size_t> deferred_;
};

}  // namespace llamesh::sharding
