#pragma once

#include <cstdint>

namespace llamesh::optim {

enum class OptimizerName : std::uint8_t { adamw, sgd };

/// `optimizer:` of the inputs. The learning rate is the schedule's highest.
struct OptimizerOptions {
  OptimizerName name = OptimizerName::adamw;
  double lr = 3e-4;
  double beta1 = 0.9;  ///< `betas: [0.9, 0.95]` in the inputs; sgd: beta1 is the momentum
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< on matrices only
  double clip_norm = 1.0;     ///< of the gradient over all parameters; 0: no clipping
};

enum class ScheduleName : std::uint8_t { constant, linear, cosine, wsd };

/// `schedule:` of the inputs.
struct ScheduleOptions {
  ScheduleName name = ScheduleName::cosine;
  std::int64_t warmup_steps = 0;  ///< linear from 0
  std::int64_t decay_steps =
      0;                      ///< wsd: length of the final decay; others: 0 = to the end of the run
  double min_lr_ratio = 0.1;  ///< of lr, at the end of the decay
};

}  // namespace llamesh::optim
