#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"
#include "ops/fp8_scale.hpp"

/// Rounding to e4m3, also for kernels that hold a row which they write.
namespace LLAMESH_OPS_CUDA {

__device__ __forceinline__ std::uint32_t magnitude_of(float x) {
  return __float_as_uint(x) & 0x7fffffffU;
}

/// Returns e4m3 bits of a number up to 448, or NaN.
__device__ __forceinline__ std::uint32_t narrowed(float x) {
  const std::uint32_t magnitude = magnitude_of(x);
  std::uint32_t bits = 0x7fU;
  if (magnitude < 0x3c800000U)  // 2^-6; the sum's last bit is worth 2^-9, as a subnormal's
    bits = __float_as_uint(__uint_as_float(magnitude) + 16384.0F) - 0x46800000U;
  else if (magnitude <= infinity_bits)
    bits = ((magnitude + 0x7ffffU + ((magnitude >> 20U) & 1U)) >> 20U) - (120U << 3U);
  return bits | ((__float_as_uint(x) >> 24U) & 0x80U);
}

/// Stores up * x as 1, 4 or 8 e4m3 numbers at once.
template <int width>
__device__ __forceinline__ void store_narrowed(e4m3* to, const Pack<width>& x, float up) {
  if constexpr (width == 1) {
    to->bits = static_cast<std::uint8_t>(narrowed(x.v[0] * up));
  } else {
    std::conditional_t<width == 4, Words1, Words2> words{};
#pragma unroll
    for (int i = 0; i < width; ++i)
      words.w[i / 4] |= narrowed(x.v[i] * up) << (8U * static_cast<unsigned>(i % 4));
    store_words(to, words);
  }
}

/// A matrix of e4m3 numbers with a scale per row.
struct Fp8Rows {
  e4m3* values;
  float* scales;
};
inline Fp8Rows rows_of(const Fp8Matrix& q) {
  return {q.values.as<e4m3>(), q.scales.as<float>()};
}

/// Quantizes a row that a block keeps as stored: a thread's pack p begins with the column (p *
/// blockDim.x + threadIdx.x) * width. `shared` has an element per warp, and is no longer read.
template <class T, int packs>
__device__ __forceinline__ void quantize_kept(const Fp8Rows& q, const Words4 (&kept)[packs],
                                              std::int64_t row, int cols, std::uint32_t* shared) {
  constexpr int width = per_16_bytes<T>;
  std::uint32_t most = 0;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (static_cast<int>(p * blockDim.x + threadIdx.x) * width >= cols) continue;
    const auto values = unpack<T>(kept[p]);
#pragma unroll
    for (int i = 0; i < width; ++i) most = larger(most, magnitude_of(values.v[i]));
  }
  const auto scale = fp8_scale(block_max(most, shared));
  if (threadIdx.x == 0) q.scales[row] = scale.down;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int col = static_cast<int>(p * blockDim.x + threadIdx.x) * width;
    if (col < cols) store_narrowed(q.values + row * cols + col, unpack<T>(kept[p]), scale.up);
  }
}

}  // namespace LLAMESH_OPS_CUDA
