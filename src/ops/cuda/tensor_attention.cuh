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
    static_assert(rows * chunks % threads == 0);
    LLAMESH_UNROLL
    for (int n = 0; n < rows * chunks / threads; ++n) {
      const int i = n * threads + thread_x();
      const int r = i / chunks, c = i % chunks;
      const bool real = r < count;
      copy_async(at(r, c), from[first + (real ? r : 0)] + col + c * 8, real);
    }
  }

  /// Left factor: rows [row, row + 16), numbers [16 k, 16 k + 16).
  __device__ __forceinline__ void left(std::uint32_t (&to)[4], int row, int k) const {
    load_matrices(to, at(row + my_lane() % 16, 2 * k + my_lane() / 16));
  }
  /// Right factors whose columns are rows [row, row + 16) of the tile, 8 each: to[0], to[1] and
  /// to[2], to[3]; numbers [16 k, 16 k + 16).
  __device__ __forceinline__ void right(std::uint32_t (&to)[4], int row, int k) const {
    load_matrices(to, at(row + my_lane() % 8 + my_lane() / 16 * 8, 2 * k + my_lane() / 8 % 2));
  }
  /// Right factors whose rows are rows [row, row + 16) of the tile; columns [16 n, 16 n + 16).
  __device__ __forceinline__ void right_by_rows(std::uint32_t (&to)[4], int row, int n) const {
    load_matrices_transposed(to, at(row + my_lane() % 16, 2 * n + my_lane() / 16));
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

/// The left factor for columns [16 k, 16 k + 16) of sums, rounded.
template <int n>
__device__ __forceinline__ void left_of_sums(std::uint32_t (&to)[4], const float (&sums)[n][4],
                                             int k) {
  to[0] = pack_bf16(sums[2 * k][0], sums[2 * k][1]);
  to[1] = pack_bf16(sums[2 * k][2], sums[2 * k][3]);
  to[2] = pack_bf16(sums[2 * k + 1][0], sums[2 * k + 1][1]);
  to[3] = pack_bf16(sums[2 * k + 1][2], sums[2 * k + 1][3]);
}

/// sums (16, 8 n) = rows [row, row + 16) of `a` times the transpose of the first 8 n rows of `b`.
template <int dims, int n>
__device__ __forceinline__ void score(float (&sums)[n][4], const Tile<dims>& a, int row,
                                      const Tile<dims>& b) {
  LLAMESH_UNROLL
  for (int j = 0; j < n; ++j) {
    LLAMESH_UNROLL
    for (int i = 0; i < 4; ++i) sums[j][i] = 0;
  }
  LLAMESH_UNROLL
  for (int k = 0; k < dims / 16; ++k) {
    std::uint32_t x[4];
    a.left(x, row, k);
    LLAMESH_UNROLL
    for (int j = 0; j < n / 2; ++j) {
      std::uint32_t y[4];
      b.right(y, 16 * j, k);
      multiply(sums[2 * j], x, y[0], y[1]);
      multiply(sums[2 * j + 1], x, y[2], y[3]);
    }
  }
}

/// sums (16, dims) += weights (16, 8 n), rounded, times the first 8 n rows of `b`.
template <int dims, int n>
__device__ __forceinline__ void mix(float (&sums)[dims / 8][4], const float (&weights)[n][4],
                                    const Tile<dims>& b) {
  LLAMESH_UNROLL
  for (int k = 0; k < n / 2; ++k) {
    std::uint32_t x[4];
    left_of_sums(x, weights, k);
    LLAMESH_UNROLL
    for (int j = 0; j < dims / 16; ++j) {
      std::uint32_t y[4];
      b.right_by_rows(y, 16 * k, j);
      multiply(sums[2 * j], x, y[0], y[1]);
      multiply(sums[2 * j + 1], x, y[2], y[3]);
    }
  }
}

inline constexpr float log2_e = 1.44269504F;

}  // namespace LLAMESH_OPS_CUDA::tensor
