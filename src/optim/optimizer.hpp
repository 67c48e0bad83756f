#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/calls.hpp"
#include "ops/square_units.hpp"
#include "optim/muon.hpp"
#include "optim/optimizer_options.hpp"
#include "optim/rounding_bits.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::optim {

/// Returns the moments that an optimizer keeps, with their names in PyTorch and in checkpoints;
/// last what a replica that trains apart keeps of its own exchanges.
std::vector<sharding::Moment> moments_of(const OptimizerOptions& options);

/// Throws a user error if the options contradict one another or the placement of the parameters.
void check(const OptimizerOptions& options, const sharding::ShardLayout& layout,
           sharding::Offload offload);

/// Returns this rank's contribution to the squared norm of the whole gradient: the sum of squares
/// over its gradient shards, counting each model element on only one of the ranks that hold it. The
/// contributions add up to the squared norm over the world. Local; waits for the state's stream.
double squared_norm_share(const sharding::ShardedState& state);
/// The same as a sum that no order or division among ranks changes. All magnitudes in the gradients
/// are below 2^exponent.
ops::SquareUnits square_units_share(const sharding::ShardedState& state, int exponent);
/// Returns the largest magnitude in this rank's gradient shards; a NaN if they have one. Local;
/// waits for the state's stream.
float largest_gradient(const sharding::ShardedState& state);

/// AdamW, SGD with momentum, or Muon with AdamW for all but the hidden matrices, on this rank's
/// shards. It reads the gradients in `state` and updates its master weights, their copy and its
/// moments in place. Weight decay applies to matrices only.
///
/// Moments in bf16 are rounded stochastically once the update has used them. The random bits depend
/// only on (seed, step, parameter name, element index in the whole parameter), so every mesh and
/// every resumed run draws the same.
class Optimizer {
 public:
  /// `state` is borrowed and must have the moments from moments_of(options). Collective over the
  /// mesh, which Muon borrows.
  Optimizer(const OptimizerOptions& options, sharding::ShardedState& state, comm::DeviceMesh& mesh,
            std::uint64_t seed = 0);

  /// Performs one step. `norm` is the gradient norm, for clipping: gradients are scaled by
  /// min(1, clip_norm / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_. `step` starts at 1
  /// and enters the bias correction. `lr` is AdamW's and SGD's; Muon's has the same ratio to its
  /// maximum. Calls `on_updated` once a unit's update is queued on the state's stream.
  void step(
      double lr, double norm, std::int64_t step,
      const std::function<void(std::size_t unit)>& on_updated = [](std::size_t) {});

 private:
  /// Calls visit for ranges that together are a piece, with their random bits at an optimizer step:
  /// one range, if the moments are fp32.
  void for_each_rounded_range(const sharding::Piece& piece, std::int64_t step,
                              const VisitRounded& visit) const;
  Tensor copy_of(std::size_t unit, const sharding::Piece& piece) const;
  void update_adamw(std::size_t unit, const sharding::Piece& piece, const ops::AdamwStep& step,
                    std::int64_t number);

  OptimizerOptions options_;
  sharding::ShardedState& state_;
  std::uint64_t seed_;
  std::optional<Muon> muon_;
};

}  // namespace llamesh::optim
