#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "optim/optimizer_options.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::optim {

/// The moments' names, as in PyTorch and in checkpoints.
inline constexpr std::array<const char*, 2> adamw_moments = {"exp_avg", "exp_avg_sq"};
inline constexpr const char* sgd_moment = "momentum";

/// The moments that an optimizer keeps, for ShardedState.
std::vector<std::string> moments_of(OptimizerName optimizer);

/// This rank's share of the squared norm of the whole gradient: the sum of squares of the gradients
/// that it holds, where each element of the model is counted on one of the ranks that hold it. So
/// the sum of the shares over the world is the squared norm. Local; waits for the state's stream.
double squared_norm_share(const sharding::ShardedState& state);

/// AdamW, or SGD with momentum, on this rank's shards. It reads the gradients of `state` and
/// updates its master weights, their copy and its moments in place, in one pass. Weight decay
/// applies to matrices only.
class Optimizer {
 public:
  /// `state` is borrowed and has the moments of moments_of(options.name).
  Optimizer(const OptimizerOptions& options, const sharding::ShardedState& state)
      : options_(options), state_(state) {}

  /// One step. `norm` is the gradient's, for clipping: gradients are scaled by
  /// min(1, clip_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does. `step` counts from
  /// 1 and enters the bias correction. `on_updated` is called when the update of a unit is in the
  /// stream of the state.
  void step(
      double lr, double norm, std::int64_t step,
      const std::function<void(std::size_t unit)>& on_updated = [](std::size_t) {}) const;

 private:
  OptimizerOptions options_;
  const sharding::ShardedState& state_;
};

}  // namespace llamesh::optim
