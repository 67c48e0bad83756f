#pragma once

#include <bit>
#include <cstdint>
#include <numbers>

#include "ops/cpu/vec.hpp"

/// Attention softmax works in base 2: queries carry a factor log2(e), so exp(score) becomes exp2 of
/// their products with the keys.
namespace llamesh::ops::cpu {

inline constexpr float log2_e = std::numbers::log2e_v<float>;
inline constexpr float ln_2 = std::numbers::ln2_v<float>;

/// Returns 2^x for x < 127 with a relative error below 2e-7: exactly 1 at 0, 0 below -126.5, NaN
/// for NaN.
/// x = n + f with |f| <= 1/2; 2^f is the degree-5 polynomial that is 1 at 0 and has the smallest
/// relative error (9.2e-8).
inline Vec exp2(Vec x) {
  constexpr float exponent_bias = 127.0F;
  // Added to x, this rounds it: the low bits of the sum are the integer n plus the exponent's bias.
  constexpr float round_to_int = 12582912.0F + exponent_bias;  // 1.5 * 2^23 + 127
  x = max(broadcast(-exponent_bias), x);                       // n + 127 >= 0; keeps NaN
  const Vec shifted = x + round_to_int;
  const Vec f = x - (shifted - round_to_int);
  Vec p = broadcast(1.3264722046e-3F);
  p = p * f + 9.6715129970e-3F;
  p = p * f + 5.5507337604e-2F;
  p = p * f + 2.4022242078e-1F;
  p = p * f + 6.9314697759e-1F;
  p = p * f + 1.0F;
  return p * std::bit_cast<Vec>(std::bit_cast<VecBits>(shifted) << 23U);
}

/// Softcap of scores that carry the factor log2(e).
struct ScoreCap {
  explicit ScoreCap(float softcap)
      : most(softcap * log2_e), inverse(softcap > 0 ? 1.0F / most : 0.0F) {}
  explicit operator bool() const { return most > 0; }

  Vec capped(Vec score) const { return most * tanh(score * inverse); }
  /// Returns the slope of capped(), from its result.
  Vec slope(Vec capped) const { return 1.0F - capped * inverse * (capped * inverse); }

 private:
  float most, inverse;
};

/// Returns a mask over the queries in a vec_width square on the diagonal: whether they see its key
/// i. Its first query sees the first key only.
inline VecInt sees(std::int64_t i) {
  VecInt query;
  for (std::int64_t lane = 0; lane < vec_width; ++lane)
    query[lane] = static_cast<std::int32_t>(lane);
  return query >= static_cast<std::int32_t>(i);
}

}  // namespace llamesh::ops::cpu
