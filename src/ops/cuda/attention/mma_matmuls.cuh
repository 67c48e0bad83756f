#pragma once

#include "ops/cuda/attention/attention_tiles.cuh"

/// The two products in attention, per warp: mma.sync, from Ampere on.
namespace LLAMESH_OPS_CUDA::tensor_core {

/// sums[h] (16, 8 n) = rows [row + 16 h, row + 16 h + 16) of `a` times the transposed first 8 n
/// rows of `b`.
template <int dims, int halves, int n, int a_rows, int b_rows>
__device__ __forceinline__ void mma_qk(float (&sums)[halves][n][4], const Tile<dims, a_rows>& a,
                                       int row, const Tile<dims, b_rows>& b) {
#pragma unroll
  for (int h = 0; h < halves; ++h) {
#pragma unroll
    for (int j = 0; j < n; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[h][j][i] = 0;
    }
  }
  const auto left = a.by_rows(row), right = b.by_columns();
#pragma unroll
  for (int k = 0; k < dims / 16; ++k) {
    std::uint32_t x[halves][4];
    const auto from = a.across(left, k), columns = b.across(right, k);
#pragma unroll
    for (int h = 0; h < halves; ++h) ldmatrix_x4(x[h], from + a.down(16 * h));
#pragma unroll
    for (int j = 0; j < n / 2; ++j) {
      std::uint32_t y[4];
      ldmatrix_x4(y, columns + b.down(16 * j));
#pragma unroll
      for (int h = 0; h < halves; ++h) {
        mma_m16n8k16(sums[h][2 * j], x[h], y[0], y[1]);
        mma_m16n8k16(sums[h][2 * j + 1], x[h], y[2], y[3]);
      }
    }
  }
}

/// sums[h] (16, dims) += p[h] (16, 16 n) (A operands) times the first 16 n rows of `b`.
template <int dims, int halves, int n, int b_rows>
__device__ __forceinline__ void mma_pv(float (&sums)[halves][dims / 8][4],
                                       const std::uint32_t (&p)[halves][n][4],
                                       const Tile<dims, b_rows>& b) {
  const auto right = b.by_rows(0);
#pragma unroll
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int j = 0; j < dims / 16; ++j) {
      std::uint32_t y[4];
      ldmatrix_x4_trans(y, b.across(right, j) + b.down(16 * k));
#pragma unroll
      for (int h = 0; h < halves; ++h) {
        mma_m16n8k16(sums[h][2 * j], p[h][k], y[0], y[1]);
        mma_m16n8k16(sums[h][2 * j + 1], p[h][k], y[2], y[3]);
      }
    }
  }
}

}  // namespace LLAMESH_OPS_CUDA::tensor_core
