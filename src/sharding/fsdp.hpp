#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "comm/device_mesh.hpp"
#include "device/async_copy.hpp"
#include "model/weights.hpp"
#include "sharding/partial_sums.hpp"
#include "sharding/sharded_state.hpp"
#include "sharding/sharding_options.hpp"
#include "sharding/slot_pool.hpp"

namespace llamesh::sharding {

/// A micro-batch's place within its optimizer step.
struct MicroBatch {
  bool first;  ///< its gradients overwrite those of the former step
  bool last;   ///< its gradients complete the step: they go to the replicas
};

/// Fully sharded data parallelism: schedules the gathers and reductions of the units of a
/// ShardedState over the groups that their placements name.
///
/// A unit is gathered when the model enters one of its modules and released when it leaves; the
/// next ones are gathered meanwhile. Where it is resharded to a group (Reshard::to_group), each
/// rank keeps its secondary shard of it, in the compute dtype, from the forward pass to the
/// backward pass, which gathers from these. The units that the next micro-batch of a step enters
/// first stay gathered, as many as may be gathered at a time. When the backward pass leaves a unit,
/// its gradients are reduce-scattered and added to the shard behind the computation; on the last
/// micro-batch of a step they are then all-reduced over the replicas. Gradients that are partial
/// sums along other axes are completed at the end of the step, all in one all-reduce. Over a group
/// of one rank nothing moves.
///
/// Of a state in host memory, weights come to the device before they are gathered, or when the
/// optimizer has updated them; a unit's gradients go to the host when they are reduced, and come
/// back to be added to in the next micro-batch. Two streams do that behind the computation, one for
/// each direction.
///
/// With LLAMESH_POISON=1 in the environment gathered parameters become NaNs when they are released
/// (where no other rank reads the same memory), and gradients are NaNs until they are written:
/// a use at the wrong time then shows in the loss. It costs a pass over that memory each time.
class Fsdp final : public model::Weights {
 public:
  /// Collective over the mesh. `state` and `mesh` are borrowed.
  Fsdp(ShardedState& state, comm::DeviceMesh& mesh, const ShardingOptions& sharding,
       const PrecisionOptions& precision);
  ~Fsdp() override;  ///< Waits for the collectives that are under way.

  /// Comes before each micro-batch's forward pass of training.
  void begin_micro_batch(const MicroBatch& place) { micro_batch_ = place; }
  /// Work put into the stream of the state after this finds the gradients of all units in the
  /// shards. Rethrows what went wrong on the way.
  void finish_gradients();
  /// Comes after work in the stream of the state has changed the masters of a unit and their copy:
  /// it is gathered from them only when that is done.
  void on_master_weights_updated(std::size_t unit);
  /// The same of all units whose masters alone have changed: their copies are made anew.
  void on_master_weights_loaded();
  /// On CPUs, seconds so far in which the compute stream was blocked by copies to and from the
  /// host.
  double seconds_exposed_by_copies() const;

  // model::Weights
  void enter(model::ModuleId module, model::Pass pass) override;
  void leave(model::ModuleId module, model::Pass pass) override;
  Tensor parameter(model::ParameterId id) override;
  model::GradientSlot gradient(model::ParameterId id) override;
  void no_gradient(model::ParameterId id) override;

 private:
  /// Over what a unit is gathered and reduced, and the buffers that its like take turns in.
  struct Group {
    comm::DeviceMesh::Axis& shard;
    comm::DeviceMesh::Axis& reductions;  ///< the same ranks
    comm::DeviceMesh::Axis& replicas;
    SlotPool gathered_slots;
    SlotPool gradient_slots;
    comm::DeviceMesh::Axis* secondary;  ///< the ranks of the secondary shards; null: there are none
    /// Where these ranks share memory, units gathered over them have slots of their own.
    std::optional<SlotPool> secondary_slots;
    // Of a state in host memory: shards on the device.
    SlotPool weight_shards;
    SlotPool gradient_shards;
  };
  /// Where a unit is gathered from and to.
  struct Source {
    comm::DeviceMesh::Axis& axis;
    SlotPool& slots;
    Tensor shard;
  };
  struct UnitState {
    Group* group;
    Tensor gradient;              ///< (shard_numel) fp32, the state's or its copy on the device
    device::Event gradient_here;  ///< that copy may be added to
    device::Event weights_here;   ///< the state's weights on the device are those of this step
    Tensor parameters;            ///< unsharded: (padded_numel) compute dtype, while gathered
    device::Buffer secondary;     ///< secondary shard: (padded_numel / ranks) compute dtype
    bool has_secondary = false;   ///< it is that of this micro-batch's forward pass
    Tensor gradients;  ///< unsharded: (padded_numel) reduce dtype, from the first to the reduction
    bool stays_gathered;  ///< its shards are in shared memory, in the compute dtype
    int entered = 0;      ///< how often it is entered now
    bool gathered = false;
    device::Event ready;        ///< the gather is done
    device::Event reduced;      ///< the gradient shard is done
    std::vector<bool> written;  ///< by parameter of the unit: its gradient has a first part
  };

  /// The units [first, last) that a module heads: one, several of different groups that are
  /// gathered together, or none.
  struct Heads {
    std::size_t first = 0, last = 0;
  };

  Group make_group(const ShardedState& state, const ShardedState::Group& units);
  comm::DeviceMesh::Axis* secondary_axis(const ShardedState& state,
                                         const ShardedState::Group& units);
  void bring(std::size_t unit, model::Pass pass);
  void gather(std::size_t unit);
  Source source_of(std::size_t unit) const;
  device::Event upload_weights(std::size_t unit, const Tensor& to, const device::Event& free);
  void prefetch(Heads units, model::Pass pass);
  std::size_t units_between_micro_batches() const;
  bool stays(std::size_t unit, model::Pass pass) const;
  void reshard(std::size_t unit, model::Pass pass);
  void keep_secondary_shard(UnitState& unit);
  Tensor secondary_shard(const UnitState& unit) const;
  std::int64_t gathered_bytes(std::size_t unit) const;
  void open_gradients(std::size_t unit);
  void bring_gradient_shard(std::size_t unit);
  device::Event store_gradient_shard(std::size_t unit);
  void reduce(std::size_t unit);
  /// The view of a parameter, of its part on this rank, in the unsharded unit.
  Tensor view(model::ParameterId id, const Tensor& unsharded) const;
  bool accumulates_in_place(const UnitState& unit) const {
    return unit.group->shard.size == 1 && reduce_dtype_ == DType::f32;
  }

  const ShardedState& state_;
  const ShardLayout& layout_;
  comm::DeviceMesh& mesh_;
  device::Stream& compute_ = device::compute_stream();
  Reshard reshard_rule_;
  int prefetch_ahead_;
  std::int64_t prefetch_limit_;
  DType compute_dtype_;
  DType reduce_dtype_;
  const bool poison_;  ///< LLAMESH_POISON=1: what is released turns into NaNs
  MicroBatch micro_batch_{true, true};
  std::vector<Heads> heads_;                ///< by module
  std::vector<std::size_t> index_in_unit_;  ///< of each parameter
  std::deque<Group> groups_;                ///< whose places stay
  std::vector<UnitState> units_;
  std::size_t kept_;  ///< the first units, which stay gathered between micro-batches
  PartialSums partial_sums_;
  std::optional<device::CopyStreams> copies_;  ///< of a state in host memory
};

}  // namespace llamesh::sharding
