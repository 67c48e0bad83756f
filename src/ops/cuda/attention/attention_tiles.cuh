#pragma once

#include "ops/cuda/attention/attention_rows.cuh"
#include "ops/cuda/shared_tiles.cuh"

/// Attention's tiles, and its sums as left factors.
namespace LLAMESH_OPS_CUDA::tensor_core {

/// Two tiles streamed together: keys and values, or queries and dout.
template <int dims, int value_dims, int rows>
struct TilePair {
  static constexpr int bytes = Tile<dims, rows>::bytes + Tile<value_dims, rows>::bytes;
  Tile<dims, rows> first;
  Tile<value_dims, rows> second;

  /// Pair number `stage` in the buffer at `stages`.
  __device__ __forceinline__ TilePair(SharedAddress stages, int stage)
      : first{stages + static_cast<SharedAddress>(stage * bytes)},
        second{first.base + Tile<dims, rows>::bytes} {}

  /// Starts copying rows of both from token `token` on, and from these columns on; rows from
  /// `count` on are zeros.
  template <int threads>
  __device__ __forceinline__ void copy(const Rows<const bf16>& x, const Rows<const bf16>& y,
                                       std::int64_t token, int col, int value_col,
                                       int count) const {
    first.template copy<threads>(x, token, col, count);
    second.template copy<threads>(y, token, value_col, count);
  }
};

/// Rounds sums to left (A) operands: to[k] for columns [16 k, 16 k + 16).
template <int n>
__device__ __forceinline__ void as_a_operand(std::uint32_t (&to)[n / 2][4],
                                             const float (&sums)[n][4]) {
#pragma unroll
  for (int k = 0; k < n / 2; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& from = sums[2 * k + i / 2];
      to[k][i] = pack_bf16(from[i % 2 * 2], from[i % 2 * 2 + 1]);
    }
  }
}

/// Applies the softcap to products that are not yet scaled.
template <int halves, int n_tiles>
__device__ __forceinline__ void cap(float (&s)[halves][n_tiles][4], const AttentionRows<bf16>& a) {
  const float most = a.softcap / a.scale, inverse = a.scale / a.softcap;
#pragma unroll
  for (int h = 0; h < halves; ++h) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[h][n][i] = most * tanhf(s[h][n][i] * inverse);
    }
  }
}

inline constexpr float log2_e = 1.44269504F;

}  // namespace LLAMESH_OPS_CUDA::tensor_core
