#pragma once

#include "ops/cuda/attention/attention_tiles.cuh"

/// Backward-pass steps between the matrix products, on accumulators in registers. For dQ, rows are
/// queries; for dK and dV, rows are keys and columns are the streamed queries.
///
/// P = exp(S / sqrt(E) - log_sum_exp), 0 if the query does not see the key, and dS = P (dP - delta)
/// with dP = dO V^T (Dao 2023, algorithm 2). `factor` is log2(e) / sqrt(E). A softcap changes S,
/// and dS by its slope.
namespace LLAMESH_OPS_CUDA::tensor_core {

// --- Rows are queries or keys ---

/// Returns cap()'s slope at a score, which P and log2(e) log_sum_exp give back without a register
/// of its own. Where P vanishes, any slope will do.
__device__ __forceinline__ float cap_slope(float p, float log_sum_exp, float softcap) {
  const float of_cap = p > 0 ? (log2f(p) + log_sum_exp) / (softcap * log2_e) : 0.0F;
  return 1.0F - of_cap * of_cap;
}

/// Applies the inverse of rope() to 16 gradient rows, in fp32; a lane has both columns of a pair.
/// `first` is the first token's index in its batch row, which is its position: rows have all keys.
template <int n_tiles>
__device__ __forceinline__ void rope_backward(float (&sums)[n_tiles][4],
                                              const AttentionRows<bf16>& a, int batch, int first) {
  if (a.cos_sin.data == nullptr) return;
  constexpr int half = n_tiles / 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int wanted = first + my_row() + 8 * r;
    const int i = wanted < a.sequence ? wanted : a.sequence - 1;
    const float* cosines = a.cos_sin[i - a.document_start(batch, i)] + my_col();
#pragma unroll
    for (int n = 0; n < half; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float c = cosines[8 * n + j], s = cosines[8 * (half + n) + j];
        float &x1 = sums[n][2 * r + j], &x2 = sums[half + n][2 * r + j];
        const float turned = x1 * c + x2 * s;
        x2 = x2 * c - x1 * s;
        x1 = turned;
      }
    }
  }
}

// --- Rows are queries ---

/// Statistics for a lane's two rows. `row` is the warp's first query in the block.
struct QueryRows {
  float log_sum_exp[2], delta[2];
  int first[2];

  __device__ __forceinline__ QueryRows(const AttentionRows<bf16>& a, int batch, int head,
                                       const QueryBlock& block, int row) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int wanted = row + my_row() + 8 * r;
      const int i = block.first + (wanted < block.count ? wanted : block.count - 1);
      const auto at = a.statistics(batch, head) + i;
      log_sum_exp[r] = a.log_sum_exp[at] * log2_e;
      delta[r] = a.delta[at];
      first[r] = a.first_key(batch, i);
    }
  }
};

/// Computes P from S = Q K^T; both may be the same registers.
template <int n_tiles>
__device__ __forceinline__ void recompute_p(float (&p)[1][n_tiles][4],
                                            const float (&s)[1][n_tiles][4], const QueryRows& rows,
                                            float factor) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[0][n][i] = ex2_approx(s[0][n][i] * factor - rows.log_sum_exp[i / 2]);
  }
}

/// P = 0 for keys that a query does not see. `query` is the position of the warp's first query,
/// `key` the tile's first key.
template <int n_tiles>
__device__ __forceinline__ void mask_p(float (&p)[1][n_tiles][4], const QueryRows& rows, int query,
                                       int key) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = query + my_row() + i / 2 * 8, k = key + 8 * n + my_col() + i % 2;
      if (k > q || k < rows.first[i / 2]) p[0][n][i] = 0;
    }
  }
}

/// P *= cap()'s slope.
template <int n_tiles>
__device__ __forceinline__ void times_cap_slope(float (&p)[1][n_tiles][4], const QueryRows& rows,
                                                float softcap) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[0][n][i] *= cap_slope(p[0][n][i], rows.log_sum_exp[i / 2], softcap);
  }
}

/// P becomes dS.
template <int n_tiles>
__device__ __forceinline__ void compute_ds(float (&s)[1][n_tiles][4],
                                           const float (&dp)[1][n_tiles][4],
                                           const QueryRows& rows) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][n][i] *= dp[0][n][i] - rows.delta[i / 2];
  }
}

// --- Columns are queries ---

/// Streamed queries per iteration.
inline constexpr int passing = 64;

/// Statistics for a query tile.
struct QueryColumns {
  float log_sum_exp[passing], delta[passing];
  std::int32_t first[passing];
};

/// Query tiles that can see the `own` keys starting at `k0`; the same tiles for each head. There
/// are none if the row has part of the queries, and these come before the keys or in later
/// documents.
struct VisibleQueryTiles {
  QueryRuns runs;
  int first_tile, tiles, all;

  /// Documents and windows are contiguous, so the queries that see a key are too. Binary search
  /// finds their last tile.
  __device__ __forceinline__ VisibleQueryTiles(const AttentionRows<bf16>& a, int batch, int k0,
                                               int own)
      : runs(a.runs) {
    const int first = runs.first_query(k0);
    first_tile = first < runs.queries ? runs.block_of(first, passing) : runs.blocks(passing);
    int last = runs.blocks(passing) - 1;
    for (int low = first_tile - 1; a.hides_earlier_keys() && low < last;) {
      const int middle = (low + last + 1) / 2;
      if (a.first_key(batch, runs.block(middle, passing).first) < k0 + own)
        low = middle;
      else
        last = middle - 1;
    }
    tiles = last - first_tile + 1;
    all = tiles * a.group();
  }
  __device__ __forceinline__ QueryBlock queries(int i) const {
    return runs.block(first_tile + i % tiles, passing);
  }
  __device__ __forceinline__ int head(int kv_head, int group, int i) const {
    return kv_head * group + i / tiles;
  }
};

/// Statistics for a query tile, in flight from global to shared memory. Each thread carries a word
/// or two.
template <int threads>
struct PassingStatistics {
  static constexpr int all = 3 * passing, each = (all + threads - 1) / threads;
  std::uint32_t words[each];

  __device__ __forceinline__ PassingStatistics(const AttentionRows<bf16>& a, int batch, int head,
                                               const QueryBlock& block) {
#pragma unroll
    for (int n = 0; n < each; ++n)
      words[n] = load(a, batch, head, block, threadIdx.x + n * threads);
  }
  __device__ __forceinline__ void store(QueryColumns* to) const {
#pragma unroll
    for (int n = 0; n < each; ++n) {
      const int word = threadIdx.x + n * threads;
      if (word < all) reinterpret_cast<std::uint32_t*>(to)[word] = words[n];
    }
  }

 private:
  static __device__ __forceinline__ std::uint32_t load(const AttentionRows<bf16>& a, int batch,
                                                       int head, const QueryBlock& block,
                                                       int word) {
    const int wanted = word % passing;
    const int i = block.first + (wanted < block.count ? wanted : block.count - 1);
    const auto at = a.statistics(batch, head) + i;
    // Past the block's last query, every weight is exp(-inf) = 0, whatever the scores.
    if (word < passing)
      return __float_as_uint(wanted < block.count ? a.log_sum_exp[at] * log2_e : INFINITY);
    if (word < 2 * passing) return __float_as_uint(a.delta[at]);
    return static_cast<std::uint32_t>(a.first_key(batch, i));
  }
};

/// Computes P from S; both may be the same registers. Columns are queries, starting at `first` in
/// the tile.
template <int n_tiles>
__device__ __forceinline__ void recompute_p(float (&p)[1][n_tiles][4],
                                            const float (&s)[1][n_tiles][4],
                                            const QueryColumns& columns, int first, float factor) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int col = first + 8 * n + my_col() + i % 2;
      p[0][n][i] = ex2_approx(s[0][n][i] * factor - columns.log_sum_exp[col]);
    }
  }
}

/// P = 0 for keys that a query does not see. `query` is the position of the first column's query,
/// `key` the warp's first key.
template <int n_tiles>
__device__ __forceinline__ void mask_p(float (&p)[1][n_tiles][4], const QueryColumns& columns,
                                       int first, int query, int key) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int col = 8 * n + my_col() + i % 2;
      const int k = key + my_row() + i / 2 * 8;
      const bool after = k > query + col, before = k < columns.first[first + col];
      if (after | before) p[0][n][i] = 0;  // avoids a branch
    }
  }
}

/// P *= cap()'s slope.
template <int n_tiles>
__device__ __forceinline__ void times_cap_slope(float (&p)[1][n_tiles][4],
                                                const QueryColumns& columns, int first,
                                                float softcap) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[0][n][i] *=
          cap_slope(p[0][n][i], columns.log_sum_exp[first + 8 * n + my_col() + i % 2], softcap);
  }
}

/// P becomes dS.
template <int n_tiles>
__device__ __forceinline__ void compute_ds(float (&s)[1][n_tiles][4],
                                           const float (&dp)[1][n_tiles][4],
                                           const QueryColumns& columns, int first) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[0][n][i] *= dp[0][n][i] - columns.delta[first + 8 * n + my_col() + i % 2];
  }
}

}  // namespace LLAMESH_OPS_CUDA::tensor_core
