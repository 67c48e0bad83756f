#pragma once

#include "ops/cuda/vectorized.cuh"

/// Tiles of bf16 rows in shared memory, and the fragments that the matrix instruction takes. Sums
/// stay in registers in its layout: sums[n][i] in lane l is row l / 4 + i / 2 * 8, column 8 n + l %
/// 4 * 2 + i % 2, within 16 rows.
namespace LLAMESH_OPS_CUDA::tensor_core {

__device__ __forceinline__ int my_lane() {
  return threadIdx.x % 32;
}
__device__ __forceinline__ int my_warp() {
  return threadIdx.x / 32;
}
/// Row and column of this lane's sums; it also has row + 8 and column + 1.
__device__ __forceinline__ int my_row() {
  return my_lane() / 4;
}
__device__ __forceinline__ int my_col() {
  return my_lane() % 4 * 2;
}

/// A tile in shared memory: `rows` rows of `dims` bf16 elements, in panels of 64 columns. A panel
/// row is 128 bytes; its 16-byte chunks are permuted by the row number, so that eight rows' chunks
/// in one column fall into different banks. This is wgmma's 128-byte swizzle; the tile starts at a
/// multiple of 1024.
template <int dims, int rows>
struct Tile {
  static constexpr int chunks = dims / 8;
  static constexpr int row_bytes = 128;
  static constexpr int panel_bytes = rows * row_bytes;
  static constexpr int bytes = rows * dims * 2;
  static_assert(dims % 64 == 0 && panel_bytes % shared_alignment == 0,
                "the next panel and the next tile begin as this one does");
  SharedAddress base;

  __device__ __forceinline__ SharedAddress at(int row, int chunk) const {
    return base + static_cast<SharedAddress>(chunk / 8 * panel_bytes + row * row_bytes +
                                             ((chunk ^ row) & 7) * 16);
  }

  /// Starts copying all rows from token `first` on; rows from `count` on are zeros.
  template <int threads>
  __device__ __forceinline__ void copy(Rows<const bf16> from, std::int64_t first, int col,
                                       int count) const {
    constexpr int chunks_at_once = threads % chunks == 0 ? chunks : 8;  // whole rows, or a panel
    constexpr int rows_at_once = threads / chunks_at_once;
    static_assert(threads % chunks_at_once == 0 && rows % rows_at_once == 0 &&
                  rows_at_once % 8 == 0);
    const int thread = rematerialized_thread_x();
    const int r = thread / chunks_at_once, c = thread % chunks_at_once;
    const auto* next = from[first + r] + col + c * 8;
    const SharedAddress to = at(r, c);
#pragma unroll
    for (int n = 0; n < rows / rows_at_once; ++n) {
#pragma unroll
      for (int panel = 0; panel < chunks / chunks_at_once; ++panel)
        cp_async_16(
            to + static_cast<SharedAddress>(panel * panel_bytes + n * rows_at_once * row_bytes),
            next + panel * 64, r + n * rows_at_once < count);
      next += rows_at_once * from.stride;
    }
  }

  // Chunk c in a lane's row has chunk 0's address with c's bits XORed in (rematerialized_xor),
  // within its panel: rows are 128 bytes long and the tile starts at a multiple of that.

  /// Returns this lane's start address for left factors in rows [row, row + 16), and for right
  /// factors that are tile rows.
  __device__ __forceinline__ SharedAddress by_rows(int row) const {
    const int lane = rematerialized_thread_x() % 32;
    return at(row + lane % 16, lane / 16);
  }
  /// Returns this lane's start address for right factors whose columns are tile rows.
  __device__ __forceinline__ SharedAddress by_columns() const {
    const int lane = rematerialized_thread_x() % 32;
    return at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }
  /// Moves either address to row elements [16 k, 16 k + 16).
  static __device__ __forceinline__ SharedAddress across(SharedAddress from, int k) {
    return rematerialized_xor(from, static_cast<SharedAddress>(k % 4 * 32)) +
           static_cast<SharedAddress>(k / 4 * panel_bytes);
  }
  /// Offset that moves either address down by `count` rows, a multiple of 16.
  static constexpr __device__ __forceinline__ SharedAddress down(int count) {
    return static_cast<SharedAddress>(count * row_bytes);
  }

  /// Stores this warp's sums: rows [row, row + 16) = factor * sums.
  __device__ __forceinline__ void put(int row, const float (&sums)[dims / 8][4],
                                      float factor) const {
#pragma unroll
    for (int n = 0; n < chunks; ++n) {
      const auto offset = static_cast<SharedAddress>(my_col() * 2);
      st_shared(at(row + my_row(), n) + offset,
                pack_bf16(factor * sums[n][0], factor * sums[n][1]));
      st_shared(at(row + my_row() + 8, n) + offset,
                pack_bf16(factor * sums[n][2], factor * sums[n][3]));
    }
  }
  /// Writes this warp's rows [row, row + some), starting at token `first` + row; skips rows from
  /// `count` on.
  template <int some>
  __device__ __forceinline__ void write(Rows<bf16> to, std::int64_t first, int col, int row,
                                        int count) const {
#pragma unroll
    for (int n = 0; n < some * chunks / 32; ++n) {
      const int i = n * 32 + my_lane();
      const int r = row + i / chunks, c = i % chunks;
      if (r < count) store_words(to[first + r] + col + c * 8, ld_shared_v4(at(r, c)));
    }
  }
};

}  // namespace LLAMESH_OPS_CUDA::tensor_core
