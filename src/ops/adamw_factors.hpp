#pragma once

#include <cmath>

#include "ops/ops.hpp"

namespace llamesh::ops {

/// Scalar factors for an AdamW step, computed in double and rounded once, as torch does with its
/// scalars.
struct AdamwFactors {
  float kept;             ///< 1 - lr weight_decay
  float step_size;        ///< lr / correction1
  float root_correction;  ///< 1 / sqrt(correction2)
  float beta2;
  float one_minus_beta1, one_minus_beta2;
  float eps, gradient_scale;
};

inline AdamwFactors factors_of(const AdamwStep& step) {
  return {.kept = static_cast<float>(1 - step.lr * step.weight_decay),
          .step_size = static_cast<float>(step.lr / step.correction1),
          .root_correction = static_cast<float>(1 / std::sqrt(step.correction2)),
          .beta2 = static_cast<float>(step.beta2),
          .one_minus_beta1 = static_cast<float>(1 - step.beta1),
          .one_minus_beta2 = static_cast<float>(1 - step.beta2),
          .eps = static_cast<float>(step.eps),
          .gradient_scale = static_cast<float>(step.gradient_scale)};
}

}  // namespace llamesh::ops
