#pragma once

#include "ops/cuda/attention/attention_tiles.cuh"

/// The two products in attention, per warpgroup (four warps): wgmma, on Hopper. Both only issue
/// their products, as one group.
namespace LLAMESH_OPS_CUDA::tensor_core {

/// sums (64, 8 n) = rows [row, row + 64) of `a` times the transposed first 8 n rows of `b`.
template <int dims, int n, int a_rows, int b_rows>
__device__ __forceinline__ void wgmma_qk(float (&sums)[1][n][4], const Tile<dims, a_rows>& a,
                                         int row, const Tile<dims, b_rows>& b) {
  const auto left = matrix_descriptor(a.base + a.down(row), 16);
  const auto right = matrix_descriptor(b.base, 16);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < dims / 16; ++k)
    wgmma_ss(sums[0], advance(left, k / 4 * a.panel_bytes + k % 4 * 32),
             advance(right, k / 4 * b.panel_bytes + k % 4 * 32), k > 0);
  wgmma_commit_group();
}

/// sums (64, dims) += P (64, 16 n) (A operands) times the first 16 n rows of `b`.
template <int dims, int n, int b_rows>
__device__ __forceinline__ void wgmma_pv(float (&sums)[1][dims / 8][4], std::uint32_t (&p)[1][n][4],
                                         const Tile<dims, b_rows>& b) {
  const auto right = matrix_descriptor(b.base, b.panel_bytes);
  wgmma_fence(sums[0], p[0]);
#pragma unroll
  for (int k = 0; k < n; ++k)
    wgmma_rs(sums[0], p[0][k], advance(right, static_cast<int>(b.down(16 * k))));
  wgmma_commit_group();
}

}  // namespace LLAMESH_OPS_CUDA::tensor_core
