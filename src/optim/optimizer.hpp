#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "device/buffer.hpp"
#include "device/stream.hpp"
#include "optim/options.hpp"
#include "sharding/fsdp.hpp"

namespace llamesh::optim {

/// The names of the moments, PyTorch's, as checkpoints hold them too.
inline constexpr std::array<const char*, 2> adamw_moments = {"exp_avg", "exp_avg_sq"};
inline constexpr const char* sgd_moment = "momentum";

/// This rank's part of the squared norm of the whole gradient: the sum of squares of its fp32
/// shards. The norm is the square root of the sum over the shard axis; the replicas hold the same
/// gradients and are not counted again; padding is zero. Local; waits for the compute stream.
double squared_gradient_norm(const sharding::Fsdp& fsdp);

/// AdamW, or SGD with momentum, on this rank's shards. It reads the gradient shards of `fsdp` and
/// updates its master shards in place, in one pass. Weight decay applies to matrices only.
class Optimizer {
 public:
  /// `fsdp` is borrowed.
  Optimizer(const OptimizerOptions& options, sharding::Fsdp& fsdp);

  /// One step. `norm` is the gradient's, for clipping: gradients are scaled by
  /// min(1, clip_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does. `step` counts from
  /// 1 and enters the bias correction.
  void step(double lr, double norm, std::int64_t step);

  /// A moment by its name, and this rank's shard of it for each unit: (shard_numel) fp32.
  struct Moment {
    std::string name;
    std::vector<Tensor> shards;
  };
  const std::vector<Moment>& moments() const { return moments_; }

 private:
  void add_moment(const char* name);

  OptimizerOptions options_;
  sharding::Fsdp& fsdp_;
  std::vector<device::Buffer> buffers_;
  std::vector<Moment> moments_;
};

}  // namespace llamesh::optim
