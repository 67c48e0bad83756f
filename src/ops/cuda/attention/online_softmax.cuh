#pragma once

#include "ops/cuda/attention/attention_tiles.cuh"

/// Forward-pass steps between the two products, on scores and sums in registers. A warp has
/// `halves` times 16 queries; each lane has a row and that row + 8.
namespace LLAMESH_OPS_CUDA::tensor_core {

/// A warp's running state for its queries.
template <int dims, int halves>
struct SoftmaxState {
  float sums[halves][dims / 8][4] = {};
  float row_max[halves][2];       // row my_row(), and + 8
  float row_sum[halves][2] = {};  // over this lane's columns

  __device__ __forceinline__ SoftmaxState() {
#pragma unroll
    for (int h = 0; h < halves; ++h) row_max[h][0] = row_max[h][1] = no_score;
  }
};

/// Masks scores for keys after the query or before its document. `row` is the warp's first query in
/// the block, `key` the tile's first key.
template <int halves, int n_tiles>
__device__ __forceinline__ void mask(float (&s)[halves][n_tiles][4], const AttentionRows<bf16>& a,
                                     int batch, const QueryBlock& block, int row, int key) {
  const int lane = rematerialized_thread_x() % 32;
#pragma unroll
  for (int h = 0; h < halves; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + 16 * h + 8 * r + lane / 4, q = block.position + i;
      const int first = a.first_key(batch, block.first + (i < block.count ? i : block.count - 1));
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int k = key + 8 * n + lane % 4 * 2 + j;
          if (k > q || k < first) s[h][n][2 * r + j] = 2.0F * no_score;
        }
      }
    }
  }
}

/// S becomes P = exp(S - row_max) with the new running maximum. `rescale` is the factor that brings
/// earlier sums to it. `factor` is log2(e) / sqrt(E).
template <int dims, int halves, int n_tiles>
__device__ __forceinline__ void online_softmax_update(float (&s)[halves][n_tiles][4],
                                                      float (&rescale)[halves][2],
                                                      SoftmaxState<dims, halves>& state,
                                                      float factor) {
#pragma unroll
  for (int h = 0; h < halves; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float new_max = state.row_max[h][r];
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
        new_max = fmaxf(new_max, fmaxf(s[h][n][2 * r], s[h][n][2 * r + 1]));
      new_max = fmaxf(new_max, __shfl_xor_sync(full_warp, new_max, 1));
      new_max = fmaxf(new_max, __shfl_xor_sync(full_warp, new_max, 2));
      rescale[h][r] = ex2_approx((state.row_max[h][r] - new_max) * factor);
      state.row_max[h][r] = new_max;
      const float offset = new_max * factor;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[h][n][i] = ex2_approx(s[h][n][i] * factor - offset);
          sum += s[h][n][i];
        }
      }
      state.row_sum[h][r] = state.row_sum[h][r] * rescale[h][r] + sum;
    }
  }
}

/// Multiplies the rows of the sums.
template <int halves, int n_tiles>
__device__ __forceinline__ void scale_rows(float (&sums)[halves][n_tiles][4],
                                           const float (&by)[halves][2]) {
#pragma unroll
  for (int h = 0; h < halves; ++h) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[h][n][i] *= by[h][i / 2];
    }
  }
}

/// Divides by the row sums and writes the warp's rows to `out` through `staging`, where it owns the
/// rows from `row` on.
template <int dims, int halves, int rows>
__device__ __forceinline__ void finish(SoftmaxState<dims, halves>& state,
                                       const AttentionRows<bf16>& a,
                                       const Tile<dims, rows>& staging, int batch, int head,
                                       const QueryBlock& block, int row) {
#pragma unroll
  for (int h = 0; h < halves; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = state.row_sum[h][r];
      total += __shfl_xor_sync(full_warp, total, 1);
      total += __shfl_xor_sync(full_warp, total, 2);
      const int i = row + 16 * h + 8 * r + my_row();
      if (my_col() == 0 && i < block.count)
        a.log_sum_exp[a.statistics(batch, head) + block.first + i] =
            state.row_max[h][r] * a.scale + logf(total);
      state.row_sum[h][r] = 1.0F / total;
    }
  }
  scale_rows(state.sums, state.row_sum);
#pragma unroll
  for (int h = 0; h < halves; ++h) staging.put(row + 16 * h, state.sums[h], 1.0F);
  __syncwarp();
  staging.template write<16 * halves>(a.out, a.first_token(batch) + block.first, head * dims, row,
                                      block.count);
}

}  // namespace LLAMESH_OPS_CUDA::tensor_core
