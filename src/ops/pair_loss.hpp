#pragma once

#include <cmath>
#include <cstdint>

#include "ops/on_device_too.hpp"

namespace llamesh::ops {

/// Losses on document pairs, in which one is preferred.
enum class PairLoss : std::uint8_t {
  dpo,  ///< -log sigmoid(beta (r_c - r_r)) (Rafailov et al. 2023, equation 7)
  ipo,  ///< (r_c / t_c - r_r / t_r - 1 / (2 beta))^2 (Azar et al. 2024, equation 17; means over
        ///< tokens as in TRL)
};

/// A document in a pair: r = log p - log p under the reference model, and its t tokens in the loss.
struct PairSide {
  float ratio, tokens;
};

/// A pair's loss, and its derivatives by the ratios.
struct PairTerms {
  float loss, by_chosen, by_rejected;
};

LLAMESH_ON_DEVICE_TOO inline PairTerms pair_terms(PairLoss kind, float beta, PairSide chosen,
                                                  PairSide rejected) {
  if (kind == PairLoss::ipo) {
    const float distance =
        chosen.ratio / chosen.tokens - rejected.ratio / rejected.tokens - 0.5F / beta;
    return {distance * distance, 2 * distance / chosen.tokens, -2 * distance / rejected.tokens};
  }
  const float margin = beta * (chosen.ratio - rejected.ratio);
  const float small = expf(-fabsf(margin));  // never overflows
  const float slope = -beta * (margin > 0 ? small : 1.0F) / (1 + small);
  return {fmaxf(-margin, 0.0F) + log1pf(small), slope, -slope};
}

}  // namespace llamesh::ops
