#pragma once

#include <cstdint>
#include <vector>

#include "comm/device_mesh.hpp"
#include "model/weights.hpp"
#include "sharding/options.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/slot_pool.hpp"

namespace llamesh::sharding {

/// A micro-batch's place within its optimizer step.
struct MicroBatch {
  bool first;  ///< its gradients overwrite those of the former step
  bool last;   ///< its gradients complete the step: they go to the replicas
};

/// Fully sharded data parallelism over the axes `shard` and `replicate` of a mesh.
///
/// Every rank keeps its shard of each unit's master parameters and gradients (fp32). A unit is
/// gathered when the model enters one of its modules and given back when it leaves; the next one is
/// gathered meanwhile. When the backward pass leaves a unit, its gradients are reduce-scattered and
/// added to the shard behind the computation; on the last micro-batch of a step they are then
/// all-reduced over the replicas. With S = 1 the shard is the whole and nothing moves over that
/// axis; with R = 1 nothing moves over the other.
///
/// With LLAMESH_POISON=1 in the environment gathered parameters become NaNs when they are given
/// back (where no other rank reads the same memory), and gradients are NaNs until they are written:
/// a use at the wrong time then shows in the loss. It costs a pass over that memory each time.
///
/// Where the ranks of the shard axis share memory and compute in fp32, the master shards lie in a
/// shared window one after another: gathered is what they always are, and a gather is a barrier.
class Fsdp final : public model::Weights {
 public:
  /// Collective over the mesh. `mesh` and `layout` are borrowed.
  Fsdp(const ShardLayout& layout, comm::DeviceMesh& mesh, const ShardingOptions& sharding,
       const PrecisionOptions& precision);
  ~Fsdp() override;  ///< Waits for the collectives that are under way.

  /// Sets this rank's elements to initial values: ones for norms, normal numbers with deviation
  /// `stddev` for matrices, each a function of (seed, parameter name, element) alone.
  void initialize(std::uint64_t seed, float stddev);

  /// Comes before each micro-batch's forward pass of training.
  void begin_micro_batch(const MicroBatch& place) { micro_batch_ = place; }
  /// Work put into the compute stream after this finds the gradients of all units in the shards.
  /// Rethrows what went wrong on the way.
  void finish_gradients();
  /// Comes after work in the compute stream has changed the masters: units are gathered from them
  /// only when it is done.
  void on_master_weights_updated();

  // model::Weights
  void enter(model::ModuleId module, model::Pass pass) override;
  void leave(model::ModuleId module, model::Pass pass) override;
  Tensor parameter(model::ParameterId id) override;
  model::GradientSlot gradient(model::ParameterId id) override;

  const ShardLayout& layout() const { return layout_; }
  int shard_rank() const { return shard_.rank; }
  const comm::Communicator& shard_group() const { return shard_.group; }
  /// This rank's shard of a unit: (shard_numel) fp32.
  Tensor master(std::size_t unit) const { return units_[unit].master; }
  Tensor gradient_shard(std::size_t unit) const { return units_[unit].gradient; }
  /// The gradient shards of all units one after another, padding zero: (layout().shard_numel())
  /// fp32.
  Tensor gradients() const;

 private:
  struct UnitState {
    Tensor master;    ///< (shard_numel) fp32
    Tensor gradient;  ///< (shard_numel) fp32
    Tensor whole;     ///< (padded_numel) compute dtype, while gathered
    Tensor parts;     ///< (padded_numel) reduce dtype, from the first gradient to the reduction
    int entered = 0;  ///< how often it is entered now
    bool gathered = false;
    device::Event ready;        ///< the gather is done
    device::Event reduced;      ///< the gradient shard is done
    std::vector<bool> written;  ///< by parameter of the unit: its gradient has a first part
  };

  void place_masters();
  void gather(std::size_t unit);
  void prefetch(std::size_t unit, model::Pass pass);
  void reshard(std::size_t unit);
  void open_gradients(std::size_t unit);
  void reduce(std::size_t unit);
  bool accumulates_in_place() const { return shard_.size == 1 && reduce_dtype_ == DType::f32; }

  const ShardLayout& layout_;
  device::Stream& compute_ = device::compute_stream();
  comm::DeviceMesh::Axis& shard_;
  comm::DeviceMesh::Axis& replicate_;
  Reshard reshard_rule_;
  int prefetch_ahead_;
  DType compute_dtype_;
  DType reduce_dtype_;
  const bool poison_;          ///< LLAMESH_POISON=1: what is given back turns into NaNs
  bool masters_are_gathered_;  ///< the master shards lie in shared memory, in the compute dtype
  MicroBatch micro_batch_{true, true};
  std::vector<int> unit_of_module_;         ///< the unit that a module heads, or -1
  std::vector<std::size_t> index_in_unit_;  ///< of each parameter
  device::Buffer master_buffer_;
  device::Buffer gradient_buffer_;
  SlotPool gathered_slots_;
  SlotPool gradient_slots_;
  std::vector<UnitState> units_;
};

}  // namespace llamesh::sharding
