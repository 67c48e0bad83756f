#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/calls.hpp"
#include "optim/optimizer_options.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::optim {

/// Returns the moments that an optimizer keeps, with their names in PyTorch and in checkpoints.
std::vector<sharding::Moment> moments_of(const OptimizerOptions& options);

/// Throws a user error if the options do not fit together.
void check(const OptimizerOptions& options);

/// Returns this rank's contribution to the squared norm of the whole gradient: the sum of squares
/// over its gradient shards, counting each model element on only one of the ranks that hold it. The
/// contributions add up to the squared norm over the world. Local; waits for the state's stream.
double squared_norm_share(const sharding::ShardedState& state);

/// AdamW, or SGD with momentum, on this rank's shards. It reads the gradients in `state` and
/// updates its master weights, their copy and its moments in place, in one pass. Weight decay
/// applies to matrices only. Moments in bf16 are rounded stochastically once the update has used
/// them; the random bits depend only on (seed, step, parameter name, element index in the whole
/// parameter), so every mesh and every resumed run draws the same.
class Optimizer {
 public:
  /// `state` is borrowed and must have the moments from moments_of(options).
  Optimizer(const OptimizerOptions& options, sharding::ShardedState& state, std::uint64_t seed = 0)
      : options_(options), state_(state), seed_(seed) {}

  /// Performs one step. `norm` is the gradient norm, for clipping: gradients are scaled by
  /// min(1, clip_norm / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_. `step` starts at 1
  /// and enters the bias correction. Calls `on_updated` once a unit's update is queued on the
  /// state's stream.
  void step(
      double lr, double norm, std::int64_t step,
      const std::function<void(std::size_t unit)>& on_updated = [](std::size_t) {});

 private:
  Tensor copy_of(std::size_t unit, const sharding::Piece& piece) const;
  void update_adamw(std::size_t unit, const sharding::Piece& piece, const ops::AdamwStep& step,
                    std::int64_t number);

  OptimizerOptions options_;
  sharding::ShardedState& state_;
  std::uint64_t seed_;
};

}  // namespace llamesh::optim
