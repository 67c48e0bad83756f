#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"
#include "optim/optimizer_options.hpp"
#include "optim/pending_exchanges.hpp"
#include "sharding/quantized_collectives.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::optim {

/// Returns what replicas that train apart share (ShardedState::outer()), with names in checkpoints;
/// empty if they do not. The first has the weights.
std::vector<sharding::Moment> outer_tensors_of(const OuterOptions& options);

/// Throws a user error if the options contradict one another or the launch. `layout` has replicas
/// that train apart if the options are enabled.
void check(const OuterOptions& options, const sharding::ShardLayout& layout,
           sharding::Offload offload);

/// An action on a fragment after a step.
struct OuterAction {
  /// Send its difference; apply it in the same step, or late, after steps that the replica has
  /// taken meanwhile.
  enum class Kind : std::uint8_t { send, apply, apply_late } kind;
  int fragment;
  bool operator==(const OuterAction&) const = default;
};
/// Returns the actions after step `step` in a run of `last_step` steps, in order. A fragment's
/// difference is sent every so many steps, each fragment at another one, and is applied in the same
/// step or, with a delay, in a later one. At the end all are sent and applied. `sent_after` has, by
/// fragment, the step after which a difference was sent that is under way; 0: none. Pure.
std::vector<OuterAction> outer_actions(const OuterOptions& options, std::int64_t step,
                                       std::int64_t last_step,
                                       const std::vector<std::int64_t>& sent_after);

/// DiLoCo's outer optimizer, for replicas that train apart: treats how far they have moved, on
/// average, from the weights that they exchanged last as a gradient. The result has the same bits
/// on all replicas. Routers' selection biases, which no gradient moves, are averaged.
///
/// The differences take the gradients' place in memory, or, if exchanges last longer than a step,
/// ShardedState::outer()'s. With the state in host memory they pass through a buffer on the device.
class OuterOptimizer {
 public:
  /// Collective over the mesh. `state`, which has outer_tensors_of(options), and `mesh` are
  /// borrowed.
  OuterOptimizer(const OuterOptions& options, sharding::ShardedState& state,
                 comm::DeviceMesh& mesh);
  /// Takes this rank's weights, the same in all replicas, as exchanged.
  void start();
  /// Does what is due after a step's update of this replica, or after it was skipped. Calls
  /// `on_updated` once a unit's new weights are queued on the state's stream.
  void after_step(std::int64_t step, std::int64_t last_step,
                  const std::function<void(std::size_t unit)>& on_updated);
  /// Makes later work on the state's stream see exchanges that are under way.
  void settle();
  /// Returns those exchanges, as a checkpoint records them; empty if there are none.
  std::optional<PendingExchanges> pending() const;
  /// Continues with a checkpoint's, whose tensors the state has. Throws a user error if fragments
  /// are divided otherwise.
  void restore(const std::optional<PendingExchanges>& pending);
  /// Returns what quantization has done to the differences since the last call; nothing yet while
  /// an exchange is under way.
  sharding::QuantizationSquares take_squares();

 private:
  /// A unit that this rank trains.
  struct Unit {
    std::size_t number;
    int fragment;
    std::string subject;
    std::vector<sharding::Piece> exact;  ///< copies on several ranks: rounded, they would differ
    device::Event exchanged = {};        ///< its difference is the mean over the replicas
  };

  Tensor difference(std::size_t unit) const;
  void send(Unit& unit);
  device::Event all_reduce(const Unit& unit, const Tensor& data, const device::Event& after,
                           const Tensor& error);
  device::Event all_reduce_through_device(const Unit& unit, const Tensor& difference);
  void apply_to(const Unit& unit, float local_share);

  OuterOptions options_;
  sharding::ShardedState& state_;
  comm::DeviceMesh::Axis& replicas_;
  std::vector<Unit> units_;
  PendingExchanges pending_;
  device::Buffer staging_;  ///< with the state in host memory
  std::optional<sharding::QuantizedAllReduce> quantized_;
};

}  // namespace llamesh::optim
