#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "comm/mesh/device_mesh.hpp"
#include "optim/optimizer.hpp"
#include "optim/outer_optimizer.hpp"
#include "sharding/fsdp.hpp"
#include "sharding/mesh_context_parallel.hpp"
#include "sharding/mesh_expert_parallel.hpp"
#include "sharding/mesh_tensor_parallel.hpp"
#include "train/engine/models.hpp"
#include "train/engine/pipeline.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Sharded state, model and optimizer of one rank, and the passes of a step. Trainer runs them on
/// the process's device, a plan on a simulated one (plan/step_plan.hpp).
struct Engine {
  /// Allocates the memory; all weights are zero. Collective over the mesh; borrows the arguments.
  Engine(const Setup& setup, comm::DeviceMesh& mesh);
  ~Engine() { mesh.drain(); }  // collectives use the members' memory
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs forward and backward for each micro-batch in the step, and leaves the gradients of
  /// `scale` times the summed token losses in the shards. On a GPU the host waits for nothing.
  void forward_backward(
      std::span<const model::Batch> micro_batches, float scale,
      const std::function<void()>& on_micro_batch = [] {});
  /// Runs forward and backward for a step's first micro-batch ahead of forward_backward(), which
  /// then computes as if this had not been called. Discards the gradients; the caller takes the
  /// loss. The step has `micro_batches` of them.
  void replay(const model::Batch& first, float scale, std::int64_t micro_batches);
  /// Runs forward only, through all pipeline stages; the model takes the losses in the last one.
  void evaluate(std::span<const model::Batch> batches);
  /// Updates the weights (Optimizer::step), and the routers' biases.
  void update(double lr, double norm, std::int64_t step);
  /// In place of update(), or before the passes of a step are repeated: forgets what its gradients
  /// have left behind.
  void drop_gradients() { state.drop_gradient_errors(); }
  /// After a step, updated or skipped: what replicas that train apart exchange then.
  void exchange_replicas(std::int64_t step, std::int64_t last_step);
  /// Returns the seconds for which copies to and from the host have blocked the compute stream so
  /// far.
  double seconds_exposed_by_copies() const {
    return fsdp.seconds_exposed_by_copies() + model.seconds_exposed_by_copies();
  }

  comm::DeviceMesh& mesh;
  sharding::ShardedState state;
  sharding::Fsdp fsdp;
  std::unique_ptr<model::TensorParallel> tensor;
  std::unique_ptr<model::ExpertParallel> experts;
  std::unique_ptr<model::ContextParallel> context;
  optim::Optimizer optimizer;
  std::optional<optim::OuterOptimizer> outer;  ///< if replicas train apart
  Models model;
  std::optional<Pipeline> pipeline;  ///< if there are several stages

 private:
  double bias_update_rate_;
};

}  // namespace llamesh::train
