#pragma once

#include "ops/cuda/tensor_attention.cuh"

/// The two products of attention by warpgroups of four warps: wgmma, on Hopper. Both only start
/// their products, as one group.
namespace LLAMESH_OPS_CUDA::tensor {

/// sums (64, 8 n) = rows [row, row + 64) of `a` times the transpose of the first 8 n rows of `b`.
template <int dims, int n, int a_rows, int b_rows>
__device__ __forceinline__ void start_score(float (&sums)[1][n][4], const Tile<dims, a_rows>& a,
                                            int row, const Tile<dims, b_rows>& b) {
  const auto left = matrix_descriptor(a.base + a.down(row), 16);
  const auto right = matrix_descriptor(b.base, 16);
  begin_products();
  LLAMESH_UNROLL
  for (int k = 0; k < dims / 16; ++k)
    multiply_rows(sums[0], further(left, k / 4 * a.panel_bytes + k % 4 * 32),
                  further(right, k / 4 * b.panel_bytes + k % 4 * 32), k > 0);
  commit_products();
}

/// sums (64, dims) += weights (64, 16 n), as left factors, times the first 16 n rows of `b`.
template <int dims, int n, int b_rows>
__device__ __forceinline__ void start_mix(float (&sums)[1][dims / 8][4],
                                          std::uint32_t (&weights)[1][n][4],
                                          const Tile<dims, b_rows>& b) {
  const auto right = matrix_descriptor(b.base, b.panel_bytes);
  begin_products(sums[0], weights[0]);
  LLAMESH_UNROLL
  for (int k = 0; k < n; ++k)
    multiply_columns(sums[0], weights[0][k], further(right, static_cast<int>(b.down(16 * k))));
  commit_products();
}

}  // namespace LLAMESH_OPS_CUDA::tensor
