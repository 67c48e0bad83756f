#pragma once

#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"
#include "ops/row_norm.hpp"

/// The part that row_norm.cu and row_norm_backward.cu share.
namespace LLAMESH_OPS_CUDA {

/// 16-byte packs that each thread keeps from a row.
inline constexpr int kept_packs = 4;
inline constexpr int max_kept_threads = 512;
/// If a row is longer than that, or not a multiple of 16 bytes, elements are read twice.
inline constexpr int any_threads = 256;
inline constexpr int any_warps = any_threads / 32;
inline constexpr std::int64_t shared_sums = 32 * 4;
static_assert(3 * any_warps * 4 <= shared_sums);  // LayerNorm has three at a time

/// Partial row sums from `parts` ranks that share each row's columns, by rank and row. Null: this
/// rank has whole rows.
struct RowSums {
  const float* sums;
  int parts;
  std::int64_t stride;

  explicit RowSums(const Tensor& given)
      : sums(given ? given.as<float>() : nullptr),
        parts(given ? static_cast<int>(given.size(0)) : 1),
        stride(given.row_stride()) {}
  /// Returns the row mean. This rank has `cols` of its columns; they sum to `own`.
  __device__ __forceinline__ float mean(int row, float own, int cols) const {
    float total = sums ? 0.0F : own;
    for (int part = 0; sums && part < parts; ++part) total += sums[part * stride + row];
    return total / static_cast<float>(parts * cols);
  }
};

/// The scale of a row's elements: a weight and its offset.
template <class T>
struct Scale {
  const T* weight;
  float offset;

  template <int width>
  __device__ __forceinline__ Pack<width> at(int col) const {
    auto scale = load<width>(weight + col);
#pragma unroll
    for (int i = 0; i < width; ++i) scale.v[i] += offset;
    return scale;
  }
};

// --- Rows of several groups (heads): a warp per group ---

inline constexpr int group_warps = 8;
inline constexpr std::int64_t max_group = 1024;  // elements, for shared memory

template <class T>
__device__ __forceinline__ T* group_of(const Rows<T>& rows, std::int64_t group, int groups_a_row,
                                       int cols) {
  return rows[group / groups_a_row] + group % groups_a_row * cols;
}

inline void expect_fits(std::int64_t groups, const Tensor& w) {
  expects(groups == 1 || w.numel() <= max_group, "norm: groups of {} columns exceed {}", w.numel(),
          max_group);
}

// --- Launches ---

/// Returns the threads needed to keep a row with `cols` elements in registers; 0 if it does not
/// fit, or for LayerNorm.
template <NormKind kind, class T>
std::int64_t threads_that_keep(std::int64_t cols, bool rows_aligned) {
  constexpr std::int64_t width = per_16_bytes<T>;
  if (kind == NormKind::layer || !rows_aligned || cols % width != 0) return 0;
  const auto threads = divide_up(divide_up(cols, width * kept_packs), 32) * 32;
  return threads <= max_kept_threads ? threads : 0;
}

template <class T>
T* pointer(const Tensor& tensor) {
  return tensor ? tensor.as<T>() : nullptr;
}

/// Calls body with the width for norm_any() and backward_any(). RMSNorm takes these if its rows do
/// not stay in registers: they are long or not aligned.
template <NormKind kind, class T, class Body>
void with_any_width(int cols, bool rows_aligned, const Body& body) {
  constexpr int wide = kind == NormKind::layer ? per_16_bytes<T> : 1;
  with_width<wide>(rows_aligned && cols % wide == 0, body);
}

}  // namespace LLAMESH_OPS_CUDA
