#pragma once

#include "ops/cuda/tensor_attention.cuh"

/// What the forward pass does between its two products, with scores and sums in registers. A warp
/// has `halves` times 16 queries, of one row and that + 8 a lane.
namespace LLAMESH_OPS_CUDA::tensor {

/// What a warp knows of its queries so far.
template <int dims, int halves>
struct SoftmaxState {
  float sums[halves][dims / 8][4] = {};
  float most[halves][2];        // row my_row(), and + 8
  float total[halves][2] = {};  // of this lane's columns

  __device__ __forceinline__ SoftmaxState() {
    LLAMESH_UNROLL
    for (int h = 0; h < halves; ++h) most[h][0] = most[h][1] = no_score;
  }
};

/// Takes away the scores of keys after the query or before its document. `query` is the warp's
/// first, `key` the tile's.
template <int halves, int n_tiles>
__device__ __forceinline__ void hide(float (&s)[halves][n_tiles][4], const AttentionRows<bf16>& a,
                                     int batch, int query, int key) {
  const int lane = thread_anew() % 32;
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int q = query + 16 * h + 8 * r + lane / 4;
      const int first = a.first_key(batch, q < a.sequence ? q : a.sequence - 1);
      LLAMESH_UNROLL
      for (int n = 0; n < n_tiles; ++n) {
        LLAMESH_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int k = key + 8 * n + lane % 4 * 2 + i;
          if (k > q || k < first) s[h][n][2 * r + i] = 2.0F * no_score;
        }
      }
    }
  }
}

/// scores become weights exp(score - most so far); `kept` is what the sums so far have to be
/// multiplied by to be of the same kind. `factor` is log2(e) / sqrt(E).
template <int dims, int halves, int n_tiles>
__device__ __forceinline__ void soften(float (&s)[halves][n_tiles][4], float (&kept)[halves][2],
                                       SoftmaxState<dims, halves>& state, float factor) {
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int r = 0; r < 2; ++r) {
      float higher = state.most[h][r];
      LLAMESH_UNROLL
      for (int n = 0; n < n_tiles; ++n)
        higher = most_of(higher, most_of(s[h][n][2 * r], s[h][n][2 * r + 1]));
      higher = most_of(higher, shuffle_xor(higher, 1));
      higher = most_of(higher, shuffle_xor(higher, 2));
      kept[h][r] = exp2_fast((state.most[h][r] - higher) * factor);
      state.most[h][r] = higher;
      const float offset = higher * factor;
      float sum = 0;
      LLAMESH_UNROLL
      for (int n = 0; n < n_tiles; ++n) {
        LLAMESH_UNROLL
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[h][n][i] = exp2_fast(s[h][n][i] * factor - offset);
          sum += s[h][n][i];
        }
      }
      state.total[h][r] = state.total[h][r] * kept[h][r] + sum;
    }
  }
}

/// Multiplies the rows of the sums.
template <int halves, int n_tiles>
__device__ __forceinline__ void scale_rows(float (&sums)[halves][n_tiles][4],
                                           const float (&by)[halves][2]) {
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int n = 0; n < n_tiles; ++n) {
      LLAMESH_UNROLL
      for (int i = 0; i < 4; ++i) sums[h][n][i] *= by[h][i / 2];
    }
  }
}

/// Divides by the total weights, and writes the warp's rows of `out` by way of `staging`, whose
/// rows from `row` on are its own. `q0` is the block's first query, `count` how many there are.
template <int dims, int halves, int rows>
__device__ __forceinline__ void finish(SoftmaxState<dims, halves>& state,
                                       const AttentionRows<bf16>& a,
                                       const Tile<dims, rows>& staging, int batch, int head, int q0,
                                       int row, int count) {
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int r = 0; r < 2; ++r) {
      float total = state.total[h][r];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const int i = row + 16 * h + 8 * r + my_row();
      if (my_col() == 0 && i < count)
        a.log_sum_exp[a.statistics(batch, head) + q0 + i] =
            state.most[h][r] * a.scale + log_of(total);
      state.total[h][r] = 1.0F / total;
    }
  }
  scale_rows(state.sums, state.total);
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) staging.put(row + 16 * h, state.sums[h], 1.0F);
  sync_warp();
  staging.template write<16 * halves>(a.out, a.first_token(batch) + q0, head * dims, row, count);
}

}  // namespace LLAMESH_OPS_CUDA::tensor
