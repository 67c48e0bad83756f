#pragma once

#include "ops/cuda/attention.cuh"

/// Tiles of bf16 rows in shared memory and the pieces of them that the matrix instruction takes.
/// Sums lie in registers as it leaves them: sums[n][i] of lane l stands at row l / 4 + i / 2 * 8,
/// column 8 n + l % 4 * 2 + i % 2 of 16 rows.
namespace LLAMESH_OPS_CUDA::tensor {

__device__ __forceinline__ int my_lane() {
  return thread_x() % 32;
}
__device__ __forceinline__ int my_warp() {
  return thread_x() / 32;
}
/// The row (and that + 8) and the column (and that + 1) of this lane's sums.
__device__ __forceinline__ int my_row() {
  return my_lane() / 4;
}
__device__ __forceinline__ int my_col() {
  return my_lane() % 4 * 2;
}

/// Rows of `dims` numbers in shared memory. The 16-byte chunks of a row change places by its
/// number, so that eight rows' chunks of one column lie in different banks.
template <int dims>
struct Tile {
  static constexpr int chunks = dims / 8;
  static constexpr int row_bytes = dims * 2;
  SharedAddress base;

  __device__ __forceinline__ SharedAddress at(int row, int chunk) const {
    return base + static_cast<SharedAddress>(row * row_bytes + (chunk ^ (row & 7)) * 16);
  }

  /// Starts to copy `rows` rows from token `first` on, zeros from `count` on.
  template <int rows, int threads>
  __device__ __forceinline__ void copy(Rows<const bf16> from, std::int64_t first, int col,
                                       int count) const {
    constexpr int rows_at_once = threads / chunks;
    static_assert(threads % chunks == 0 && rows % rows_at_once == 0 && rows_at_once % 8 == 0);
    const int thread = thread_anew();
    const int r = thread / chunks, c = thread % chunks;
    const auto* next = from[first + r] + col + c * 8;
    const SharedAddress to = at(r, c);
    LLAMESH_UNROLL
    for (int n = 0; n < rows / rows_at_once; ++n) {
      copy_async(to + static_cast<SharedAddress>(n * rows_at_once * row_bytes), next,
                 r + n * rows_at_once < count);
      next += rows_at_once * from.stride;
    }
  }

  // The address of chunk c of a lane's row is that of chunk 0 with the bits of c flipped: rows are
  // 128 or 256 bytes long and the tile begins at a multiple of that.

  /// Where this lane begins to load left factors of rows [row, row + 16), and right factors that
  /// are rows of the tile.
  __device__ __forceinline__ SharedAddress by_rows(int row) const {
    const int lane = thread_anew() % 32;
    return at(row + lane % 16, lane / 16);
  }
  /// The same for right factors whose columns are rows of the tile.
  __device__ __forceinline__ SharedAddress by_columns() const {
    const int lane = thread_anew() % 32;
    return at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }
  /// From either of them to numbers [16 k, 16 k + 16) of the rows.
  static __device__ __forceinline__ SharedAddress across(SharedAddress from, int k) {
    return flipped(from, static_cast<SharedAddress>(32 * k));
  }
  /// From either of them `rows` rows down, a multiple of 16.
  static constexpr __device__ __forceinline__ SharedAddress down(int rows) {
    return static_cast<SharedAddress>(rows * row_bytes);
  }

  /// Rows [row, row + 16) = factor * sums, of this warp.
  __device__ __forceinline__ void put(int row, const float (&sums)[dims / 8][4],
                                      float factor) const {
    LLAMESH_UNROLL
    for (int n = 0; n < chunks; ++n) {
      const auto offset = static_cast<SharedAddress>(my_col() * 2);
      store_shared(at(row + my_row(), n) + offset,
                   pack_bf16(factor * sums[n][0], factor * sums[n][1]));
      store_shared(at(row + my_row() + 8, n) + offset,
                   pack_bf16(factor * sums[n][2], factor * sums[n][3]));
    }
  }
  /// Writes rows [row, row + rows), by this warp, to token `first` + row and after; none from
  /// `count` on.
  template <int rows>
  __device__ __forceinline__ void write(Rows<bf16> to, std::int64_t first, int col, int row,
                                        int count) const {
    LLAMESH_UNROLL
    for (int n = 0; n < rows * chunks / 32; ++n) {
      const int i = n * 32 + my_lane();
      const int r = row + i / chunks, c = i % chunks;
      if (r < count) store_words(to[first + r] + col + c * 8, load_shared(at(r, c)));
    }
  }
};

/// The left factors that are sums, rounded: to[k] for columns [16 k, 16 k + 16).
template <int n>
__device__ __forceinline__ void left_of_sums(std::uint32_t (&to)[n / 2][4],
                                             const float (&sums)[n][4]) {
  LLAMESH_UNROLL
  for (int k = 0; k < n / 2; ++k) {
    LLAMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto& from = sums[2 * k + i / 2];
      to[k][i] = pack_bf16(from[i % 2 * 2], from[i % 2 * 2 + 1]);
    }
  }
}

/// sums[h] (16, 8 n) = rows [row + 16 h, row + 16 h + 16) of `a` times the transpose of the first
/// 8 n rows of `b`.
template <int dims, int halves, int n>
__device__ __forceinline__ void score(float (&sums)[halves][n][4], const Tile<dims>& a, int row,
                                      const Tile<dims>& b) {
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
template <int dims, int halves, int n>
__device__ __forceinline__ void mix(float (&sums)[halves][dims / 8][4],
                                    const std::uint32_t (&weights)[halves][n][4],
                                    const Tile<dims>& b) {
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

inline constexpr float log2_e = 1.44269504F;

}  // namespace LLAMESH_OPS_CUDA::tensor
