#pragma once

#include "ops/cuda/vectorized.cuh"

/// Products of N experts in one launch, and the part of them that a block computes. The host does
/// not know the number of rows per expert, so blocks read it on the device.
namespace LLAMESH_OPS_CUDA {

/// A matrix with elements `row` apart from row to row and `col` apart from column to column.
template <class T>
struct Strided {
  T* data;
  std::int64_t row, col;

  Strided transposed() const { return {data, col, row}; }
  __device__ __forceinline__ Strided from(std::int64_t elements) const {
    return {data + elements, row, col};
  }
};

/// The dim of a product that each expert has a part of, its rows in expert order.
enum class Ragged : bool { rows, depth };

/// c (rows, cols) = or += a (rows, depth) b (depth, cols) for each expert e.
/// Ragged::rows: c and a have the rows [starts[e], starts[e + 1]) of `total`; b is one of N
/// matrices, one behind the other.
/// Ragged::depth: a has such columns and b such rows; c is one of N matrices.
template <class C, class T>
struct GroupedProduct {
  Rows<C> c;
  Strided<const T> a, b;
  const std::int32_t* starts;
  int experts, total;
  int rows, cols, depth;  // the ragged one: 0
  Ragged ragged;
  bool accumulate;
};

/// One expert's matrices, and the first element of a tile of its c.
template <class C, class T>
struct ExpertTile {
  Rows<C> c;
  Strided<const T> a, b;
  int rows, cols, depth;
  int row, col;
};

/// Tiles below each other that run at a time: they share b's columns, which then come from L2
/// cache.
constexpr int band = 8;

/// Numbers tiles with `tile` rows without counting the other experts' tiles: expert e has the
/// numbers from first_number(e) to first_number(e + 1), at least as many as its rows need.
template <int tile>
__device__ __forceinline__ int first_number(const std::int32_t* starts, int expert) {
  return starts[expert] / tile + expert;
}

/// Returns the expert of a tile's number by bisection; `experts` if no expert has it.
template <int tile>
__device__ __forceinline__ int expert_of_tile(const std::int32_t* starts, int experts, int number) {
  int low = 0, high = experts;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_number<tile>(starts, middle) <= number)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// Finds this block's tile (tile, tile) of c. Returns false if it has none. Traps if the starts are
/// not from 0 to all rows.
template <int tile, class C, class T>
__device__ __forceinline__ bool find_tile(ExpertTile<C, T>& t, const GroupedProduct<C, T>& p) {
  if (p.starts[0] != 0 || p.starts[p.experts] != p.total) __trap();
  const int tiles_across = (p.cols + tile - 1) / tile;
  int expert = 0;
  if (p.ragged == Ragged::depth) {
    expert = blockIdx.y;
    t.row = static_cast<int>(blockIdx.x) / tiles_across * tile;
    t.col = static_cast<int>(blockIdx.x) % tiles_across * tile;
  } else {
    const int of_band = band * tiles_across;
    const int in_band = static_cast<int>(blockIdx.x) % of_band;
    const int number = static_cast<int>(blockIdx.x) / of_band * band + in_band % band;
    expert = expert_of_tile<tile>(p.starts, p.experts, number);
    if (expert == p.experts) return false;
    t.row = (number - first_number<tile>(p.starts, expert)) * tile;
    t.col = in_band / band * tile;
  }
  const int first = p.starts[expert], last = p.starts[expert + 1];
  if (first < 0 || last < first || last > p.total) __trap();
  const bool ragged_rows = p.ragged == Ragged::rows;
  t.rows = ragged_rows ? last - first : p.rows;
  t.depth = ragged_rows ? p.depth : last - first;
  t.cols = p.cols;
  t.c = {p.c[ragged_rows ? first : static_cast<std::int64_t>(expert) * p.rows], p.c.stride};
  t.a = p.a.from(first * (ragged_rows ? p.a.row : p.a.col));
  t.b = p.b.from(ragged_rows ? static_cast<std::int64_t>(expert) * p.depth * p.cols
                             : first * p.b.row);
  return t.row < t.rows;
}

/// Returns the grid for tiles (tile, tile): enough for any starts.
template <int tile, class C, class T>
Grid tile_grid(const GroupedProduct<C, T>& p) {
  const auto across = divide_up(p.cols, tile);
  if (p.ragged == Ragged::depth) return {divide_up(p.rows, tile) * across, p.experts};
  return {divide_up(p.total / tile + p.experts, band) * band * across};
}

// The products on tensor cores (mma_grouped_linear.cu). Rows and columns of all matrices are
// multiples of 8 elements, rows at multiples of 16 bytes.

/// Ragged::rows, with a by rows, and b by rows or by columns (`b_transposed`).
void mma_grouped_product(Stream& stream, const GroupedProduct<bf16, bf16>& product,
                         bool b_transposed);
/// Ragged::depth, with a by columns and b by rows.
void mma_grouped_product(Stream& stream, const GroupedProduct<bf16, bf16>& product);
void mma_grouped_product(Stream& stream, const GroupedProduct<float, bf16>& product);

}  // namespace LLAMESH_OPS_CUDA
