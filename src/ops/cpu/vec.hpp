#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/dtype.hpp"

#if defined(__SSE__)
#include <immintrin.h>
#else
#include <cmath>
#endif

/// float vectors as wide as the CPU's registers (GCC vector extensions), loaded from and stored to
/// fp32 or bf16. Loops over them are written once for whole and partial vectors.
namespace llamesh::ops::cpu {

#if defined(__AVX512F__)
inline constexpr std::int64_t vec_width = 16;
#elif defined(__AVX__)
inline constexpr std::int64_t vec_width = 8;
#else
inline constexpr std::int64_t vec_width = 4;
#endif

using Vec [[gnu::vector_size(vec_width * 4)]] = float;
using VecInt [[gnu::vector_size(vec_width * 4)]] = std::int32_t;
using VecBits [[gnu::vector_size(vec_width * 4)]] = std::uint32_t;
using VecHalves [[gnu::vector_size(vec_width * 2)]] = std::uint16_t;

/// Tag: all lanes are active.
struct Whole {};
/// Tag: only the first `count` lanes are active; loads fill the rest with zeros.
struct Part {
  std::int64_t count;
};

inline Vec load(const float* from, Whole /*lanes*/) {
  Vec v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline Vec load(const bf16* from, Whole /*lanes*/) {
  VecHalves halves;
  std::memcpy(&halves, from, sizeof halves);
  return std::bit_cast<Vec>(__builtin_convertvector(halves, VecBits) << 16U);
}

inline void store(float* to, Vec v, Whole /*lanes*/) {
  std::memcpy(to, &v, sizeof v);
}

/// Rounds to nearest even, like bf16(float).
inline void store(bf16* to, Vec v, Whole /*lanes*/) {
  const auto u = std::bit_cast<VecBits>(v);
  const VecBits rounded = (u + 0x7fffU + ((u >> 16U) & 1U)) >> 16U;
  const VecBits nan = (u >> 16U) | 0x40U;
  const VecBits bits = (u & 0x7fffffffU) > 0x7f800000U ? nan : rounded;
  const VecHalves halves = __builtin_convertvector(bits, VecHalves);
  std::memcpy(static_cast<void*>(to), &halves, sizeof halves);
}

template <class T>
Vec load(const T* from, Part lanes) {
  T whole[vec_width] = {};
  std::memcpy(static_cast<void*>(whole), from, static_cast<std::size_t>(lanes.count) * sizeof(T));
  return load(whole, Whole{});
}

template <class T>
void store(T* to, Vec v, Part lanes) {
  T whole[vec_width];
  store(whole, v, Whole{});
  std::memcpy(static_cast<void*>(to), whole, static_cast<std::size_t>(lanes.count) * sizeof(T));
}

/// Returns v with zeros in the inactive lanes.
inline Vec masked(Vec v, Whole /*lanes*/) {
  return v;
}
inline Vec masked(Vec v, Part lanes) {
  for (auto i = lanes.count; i < vec_width; ++i) v[i] = 0;
  return v;
}

/// Calls body(i, lanes) for i = 0, vec_width, ...: Whole lanes, then at most one Part.
template <class Body>
[[gnu::always_inline]] inline void for_each_vec(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + vec_width <= n; i += vec_width) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

inline Vec broadcast(float value) {
  return Vec{} + value;
}
inline Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}

/// Returns the lanes added pairwise, in an order that depends on the vector width only.
inline float sum(Vec v) {
  float lane[vec_width];
  store(lane, v, Whole{});
  for (auto half = vec_width / 2; half > 0; half /= 2)
    for (std::int64_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

inline float max(Vec v) {
  float most = v[0];
  for (std::int64_t i = 1; i < vec_width; ++i) most = v[i] > most ? v[i] : most;
  return most;
}

inline Vec sqrt(Vec v) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xffff, v);  // GCC 12 warns about the unmasked one
#elif defined(__AVX__)
  return _mm256_sqrt_ps(v);
#elif defined(__SSE__)
  return _mm_sqrt_ps(v);
#else
  for (std::int64_t i = 0; i < vec_width; ++i) v[i] = std::sqrt(v[i]);
  return v;
#endif
}

/// Rounds to the nearest integers, to even ones in the middle. NaN becomes any number.
inline VecInt rounded(Vec v) {
#if defined(__AVX512F__)
  return std::bit_cast<VecInt>(_mm512_maskz_cvtps_epi32(0xffff, v));
#elif defined(__AVX__)
  return std::bit_cast<VecInt>(_mm256_cvtps_epi32(v));
#elif defined(__SSE2__)
  return std::bit_cast<VecInt>(_mm_cvtps_epi32(v));
#else
  VecInt result;
  for (std::int64_t i = 0; i < vec_width; ++i)
    result[i] = static_cast<std::int32_t>(std::nearbyint(v[i]));
  return result;
#endif
}

/// Returns e^x with a relative error below 2e-7; 0 below -87.3, infinity above 88.3, NaN for NaN.
/// x = n ln 2 + r with |r| <= ln(2) / 2; e^r is its degree-7 Taylor polynomial.
inline Vec exp(Vec x) {
  constexpr float lowest = -87.3F;
  constexpr float highest = 88.3F;
  constexpr float round_to_int = 12582912.0F;  // 1.5 * 2^23: the sum's low bits hold the integer
  const VecInt below = x < lowest;
  const VecInt above = x > highest;
  const Vec shifted = x * 1.44269504F + round_to_int;
  const Vec n = shifted - round_to_int;
  // ln 2 in two parts; the first has few bits, so that multiplying it by n is exact.
  const Vec r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  Vec p = broadcast(1.0F / 5040.0F);
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // Unsigned, because the bits are no integer if x is far out of range or NaN.
  const auto power = std::bit_cast<Vec>((std::bit_cast<VecBits>(shifted) + 127U) << 23U);
  const Vec result = p * power;
  const Vec high = above ? broadcast(std::numeric_limits<float>::infinity()) : result;
  return below ? Vec{} : high;
}

/// Returns tanh(x) with an absolute error below 3e-7; NaN for NaN. It is the minimax quotient
/// x P(x^2) / Q(x^2) on [-9, 9] (iteratively reweighted least squares; error 4e-8 before rounding),
/// and -1 or 1 beyond.
inline Vec tanh(Vec x) {
  const Vec y = x * x;
  Vec p = broadcast(1.31842046e-8F);
  p = p * y + 2.04718153e-5F;
  p = p * y + 3.48658091e-3F;
  p = p * y + 0.133731969F;
  p = p * y + 0.999999906F;
  Vec q = broadcast(7.70265521e-7F);
  q = q * y + 3.27138382e-4F;
  q = q * y + 2.58419754e-2F;
  q = q * y + 0.467064937F;
  q = q * y + 1.0F;
  const Vec inside = x * p / q;
  const Vec low = x < -9.0F ? broadcast(-1.0F) : inside;
  return x > 9.0F ? broadcast(1.0F) : low;
}

inline Vec sigmoid(Vec x) {
  return 1.0F / (1.0F + exp(-x));
}

}  // namespace llamesh::ops::cpu
