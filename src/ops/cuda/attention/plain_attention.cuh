#pragma once

#include "ops/cuda/attention/attention_rows.cuh"

/// fp32 tiles in shared memory, and their products, for plain attention. A block is a square of 16
/// x 16 threads; thread (x, y) computes rows y, y + 16, ... and columns x, x + 16, ... of the
/// block's result. Row lengths are odd, so that no two rows in a column share a bank.
namespace LLAMESH_OPS_CUDA::plain {

inline constexpr int side = 16;
inline constexpr int threads = side * side;

/// Sizes for one instance: head dims up to `dims`, `tile` queries and `tile` keys per iteration.
template <int dims_, int tile_>
struct Sizes {
  static constexpr int dims = dims_;
  static constexpr int tile = tile_;
  static constexpr int row = dims + 1;        // words per row in a token tile
  static constexpr int score_row = tile + 1;  // words per score row
  static constexpr int rows_each = tile / side;
  static constexpr int dims_each = dims / side;
  static constexpr int token_words = tile * row;
  static constexpr int score_words = tile * score_row;
};

__device__ __forceinline__ int my_x() {
  return threadIdx.x % side;
}
__device__ __forceinline__ int my_y() {
  return threadIdx.x / side;
}

/// to (tile, dims) = `count` rows with head_dim elements, zero-padded.
template <class S, class T>
__device__ void load_tokens(float* to, Rows<const T> from, std::int64_t first, int col, int count,
                            int head_dim) {
  for (int i = threadIdx.x; i < S::tile * S::dims; i += threads) {
    const int r = i / S::dims, e = i % S::dims;
    to[r * S::row + e] = r < count && e < head_dim ? load_one(from[first + r] + col + e) : 0.0F;
  }
}

/// sums += a b^T for token tiles a and b.
template <class S>
__device__ __forceinline__ void add_qk(float (&sums)[S::rows_each][S::rows_each], const float* a,
                                       const float* b, int head_dim) {
#pragma unroll 1
  for (int e = 0; e < head_dim; ++e) {
    float left[S::rows_each], right[S::rows_each];
#pragma unroll
    for (int i = 0; i < S::rows_each; ++i) {
      left[i] = a[(my_y() + side * i) * S::row + e];
      right[i] = b[(my_x() + side * i) * S::row + e];
    }
#pragma unroll
    for (int i = 0; i < S::rows_each; ++i) {
#pragma unroll
      for (int j = 0; j < S::rows_each; ++j) sums[i][j] += left[i] * right[j];
    }
  }
}

/// sums += s b, or s^T b, for scores s and a token tile b.
template <class S, bool transposed>
__device__ __forceinline__ void add_pv(float (&sums)[S::rows_each][S::dims_each],
                                       const float* scores, const float* b) {
#pragma unroll 1
  for (int t = 0; t < S::tile; ++t) {
    float left[S::rows_each], right[S::dims_each];
#pragma unroll
    for (int i = 0; i < S::rows_each; ++i) {
      const int r = my_y() + side * i;
      left[i] = transposed ? scores[t * S::score_row + r] : scores[r * S::score_row + t];
    }
#pragma unroll
    for (int j = 0; j < S::dims_each; ++j) right[j] = b[t * S::row + my_x() + side * j];
#pragma unroll
    for (int i = 0; i < S::rows_each; ++i) {
#pragma unroll
      for (int j = 0; j < S::dims_each; ++j) sums[i][j] += left[i] * right[j];
    }
  }
}

/// Stores each thread's part of a score tile in shared memory.
template <class S>
__device__ __forceinline__ void store_scores(float* to,
                                             const float (&from)[S::rows_each][S::rows_each]) {
#pragma unroll
  for (int i = 0; i < S::rows_each; ++i) {
#pragma unroll
    for (int j = 0; j < S::rows_each; ++j)
      to[(my_y() + side * i) * S::score_row + my_x() + side * j] = from[i][j];
  }
}

/// Writes `count` rows with head_dim elements: factor * sums.
template <class S, class T>
__device__ __forceinline__ void store_tokens(Rows<T> to, std::int64_t first, int col, int count,
                                             int head_dim,
                                             const float (&sums)[S::rows_each][S::dims_each],
                                             float factor) {
#pragma unroll
  for (int i = 0; i < S::rows_each; ++i) {
    const int r = my_y() + side * i;
#pragma unroll
    for (int j = 0; j < S::dims_each; ++j) {
      const int e = my_x() + side * j;
      if (r < count && e < head_dim) store_one(to[first + r] + col + e, factor * sums[i][j]);
    }
  }
}

/// Reduces over the 16 threads in a row.
__device__ __forceinline__ float reduce_max_of_row(float x) {
#pragma unroll
  for (int mask = side / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(full_warp, x, mask));
  return x;
}
__device__ __forceinline__ float reduce_sum_of_row(float x) {
#pragma unroll
  for (int mask = side / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(full_warp, x, mask);
  return x;
}

/// Returns a block's shared memory for `tokens` token tiles and one score tile.
template <class S>
constexpr std::int64_t shared_bytes(int tokens) {
  return (std::int64_t{tokens} * S::token_words + S::score_words) * 4;
}

/// Calls body(Sizes<...>{}) with the smallest instance for a head dim whose `tokens` token tiles
/// fit into this GPU's shared memory.
template <class Body>
void with_sizes(std::int64_t head_dim, int tokens, const Body& body) {
  const auto choose = [&]<class Large, class Small>(Large large, Small small) {
    shared_bytes<Large>(tokens) <= shared_bytes_a_block() ? body(large) : body(small);
  };
  if (head_dim <= 64)
    body(Sizes<64, 64>{});
  else if (head_dim <= 128)
    choose(Sizes<128, 64>{}, Sizes<128, 32>{});
  else
    choose(Sizes<256, 32>{}, Sizes<256, 16>{});
}

}  // namespace LLAMESH_OPS_CUDA::plain
