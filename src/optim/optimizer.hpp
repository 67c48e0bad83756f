#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "optim/optimizer_options.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::optim {

/// Returns the names of the moments that an optimizer keeps, as in PyTorch and in checkpoints.
std::vector<std::string> moments_of(OptimizerName optimizer);

/// Returns this rank's contribution to the squared norm of the whole gradient: the sum of squares
/// over its gradient shards, counting each model element on only one of the ranks that hold it. The
/// contributions add up to the squared norm over the world. Local; waits for the state's stream.
double squared_norm_share(const sharding::ShardedState& state);

/// AdamW, or SGD with momentum, on this rank's shards. It reads the gradients in `state` and
/// updates its master weights, their copy and its moments in place, in one pass. Weight decay
/// applies to matrices only.
class Optimizer {
 public:
  /// `state` is borrowed and must have the moments from moments_of(options.name).
  Optimizer(const OptimizerOptions& options, sharding::ShardedState& state)
      : options_(options), state_(state) {}

  /// Performs one step. `norm` is the gradient norm, for clipping: gradients are scaled by
  /// min(1, clip_norm / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_. `step` starts at 1
  /// and enters the bias correction. Calls `on_updated` once a unit's update is queued on the
  /// state's stream.
  void step(
      double lr, double norm, std::int64_t step,
      const std::function<void(std::size_t unit)>& on_updated = [](std::size_t) {});

 private:
  OptimizerOptions options_;
  sharding::ShardedState& state_;
};

}  // namespace llamesh::optim
