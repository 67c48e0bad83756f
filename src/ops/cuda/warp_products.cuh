#pragma once

#include "ops/cuda/tensor_attention.cuh"

/// The two products of attention, each warp by itself: mma.sync, from Ampere on.
namespace LLAMESH_OPS_CUDA::tensor {

/// sums[h] (16, 8 n) = rows [row + 16 h, row + 16 h + 16) of `a` times the transpose of the first
/// 8 n rows of `b`.
template <int dims, int halves, int n, int a_rows, int b_rows>
__device__ __forceinline__ void score(float (&sums)[halves][n][4], const Tile<dims, a_rows>& a,
                                      int row, const Tile<dims, b_rows>& b) {
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int j = 0; j < n; ++j) {
      LLAMESH_UNROLL
      for (int i = 0; i < 4; ++i) sums[h][j][i] = 0;
    }
  }
  const auto left = a.by_rows(row), right = b.by_columns();
  LLAMESH_UNROLL
  for (int k = 0; k < dims / 16; ++k) {
    std::uint32_t x[halves][4];
    const auto from = a.across(left, k), columns = b.across(right, k);
    LLAMESH_UNROLL
    for (int h = 0; h < halves; ++h) load_matrices(x[h], from + a.down(16 * h));
    LLAMESH_UNROLL
    for (int j = 0; j < n / 2; ++j) {
      std::uint32_t y[4];
      load_matrices(y, columns + b.down(16 * j));
      LLAMESH_UNROLL
      for (int h = 0; h < halves; ++h) {
        multiply(sums[h][2 * j], x[h], y[0], y[1]);
        multiply(sums[h][2 * j + 1], x[h], y[2], y[3]);
      }
    }
  }
}

/// sums[h] (16, dims) += weights[h] (16, 16 n), as left factors, times the first 16 n rows of `b`.
template <int dims, int halves, int n, int b_rows>
__device__ __forceinline__ void mix(float (&sums)[halves][dims / 8][4],
                                    const std::uint32_t (&weights)[halves][n][4],
                                    const Tile<dims, b_rows>& b) {
  const auto right = b.by_rows(0);
  LLAMESH_UNROLL
  for (int k = 0; k < n; ++k) {
    LLAMESH_UNROLL
    for (int j = 0; j < dims / 16; ++j) {
      std::uint32_t y[4];
      load_matrices_transposed(y, b.across(right, j) + b.down(16 * k));
      LLAMESH_UNROLL
      for (int h = 0; h < halves; ++h) {
        multiply(sums[h][2 * j], weights[h][k], y[0], y[1]);
        multiply(sums[h][2 * j + 1], weights[h][k], y[2], y[3]);
      }
    }
  }
}

}  // namespace LLAMESH_OPS_CUDA::tensor
