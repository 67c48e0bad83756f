#include "ops/cuda/kernels.hpp"
#include "ops/cuda/norm_partials.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound. Per element, forward reads x (and delta) and writes y (and the sum): 2 or 4
// accesses. Backward reads dy, x (and dx) and writes dx: 3 or 4. A row stays in registers between
// its reduction and the use of the result.
namespace LLAMESH_OPS_CUDA {
namespace {

/// 16-byte packs that each thread keeps from a row.
constexpr int kept_packs = 4;
constexpr int max_threads = 512;
/// If a row is longer than that, or not a multiple of 16 bytes, elements are read twice.
constexpr int any_threads = 256;
constexpr std::int64_t shared_sums = 32 * 4;

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

template <class T>
struct NormRows {
  Rows<T> y, sum;
  Rows<const T> x, delta;  // delta.data null: none
  Scale<T> scale;
  float* inverse_rms;
  int cols;
  float eps;
  RowSums row_sums;

  __device__ __forceinline__ float inverse(int row, float squares) const {
    return 1.0F / sqrtf(row_sums.mean(row, squares, cols) + eps);
  }
};

/// One row per block, kept in registers as stored.
template <class T>
__global__ void __launch_bounds__(max_threads) norm_kept(NormRows<T> a) {
  constexpr int width = per_16_bytes<T>;
  const auto row = blockIdx.x;
  Words4 kept[kept_packs];
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kept_packs; ++p) {
    const int col = (p * blockDim.x + threadIdx.x) * width;
    if (col >= a.cols) continue;
    kept[p] = load_words<Words4>(a.x[row] + col);
    if (a.delta.data) {
      auto total = unpack<T>(kept[p]);
      const auto added = load<width>(a.delta[row] + col);
#pragma unroll
      for (int i = 0; i < width; ++i) total.v[i] += added.v[i];
      kept[p] = pack<T>(total);  // rounded, as the backward pass will read it
      store_words(a.sum[row] + col, kept[p]);
    }
    const auto values = unpack<T>(kept[p]);
#pragma unroll
    for (int i = 0; i < width; ++i) squares += values.v[i] * values.v[i];
  }
  const float inverse = a.inverse(row, block_sum(squares, dynamic_shared_memory<float>()));
  if (threadIdx.x == 0) a.inverse_rms[row] = inverse;
#pragma unroll
  for (int p = 0; p < kept_packs; ++p) {
    const int col = (p * blockDim.x + threadIdx.x) * width;
    if (col >= a.cols) continue;
    auto values = unpack<T>(kept[p]);
    const auto scale = a.scale.template at<width>(col);
#pragma unroll
    for (int i = 0; i < width; ++i) values.v[i] *= inverse * scale.v[i];
    store<width>(a.y[row] + col, values);
  }
}

/// One row per block, any number of columns.
template <class T>
__global__ void __launch_bounds__(any_threads) norm_any(NormRows<T> a) {
  const auto row = blockIdx.x;
  const auto* from = a.delta.data ? a.sum[row] : a.x[row];
  float squares = 0;
  for (int col = threadIdx.x; col < a.cols; col += blockDim.x) {
    if (a.delta.data)
      store_one(a.sum[row] + col, load_one(a.x[row] + col) + load_one(a.delta[row] + col));
    const float number = load_one(from + col);
    squares += number * number;
  }
  const float inverse = a.inverse(row, block_sum(squares, dynamic_shared_memory<float>()));
  if (threadIdx.x == 0) a.inverse_rms[row] = inverse;
  for (int col = threadIdx.x; col < a.cols; col += blockDim.x)
    store_one(a.y[row] + col, load_one(from + col) * (inverse * a.scale.template at<1>(col).v[0]));
}

template <class T>
struct BackwardRows {
  Rows<T> dx;
  Rows<const T> dy, x;
  Scale<T> scale;
  const float* inverse_rms;
  float* partial;  // (blocks, cols): each block's part of dw
  int rows, rows_a_block, cols;
  bool accumulate;
  RowSums row_sums;
};

/// A thread's part of a row and of dw, in registers.
template <class T>
struct KeptRow {
  static constexpr int width = per_16_bytes<T>;
  Words4 slope[kept_packs], from[kept_packs];
  float dw[kept_packs][width] = {};

  static __device__ __forceinline__ int col(int p) {
    return (p * blockDim.x + threadIdx.x) * width;
  }

  /// Loads a row, adds to dw, and returns this thread's part of sum(dy w n).
  __device__ __forceinline__ float take_in(const BackwardRows<T>& a, int row, float inverse) {
#pragma unroll
    for (int p = 0; p < kept_packs; ++p) {
      if (col(p) >= a.cols) continue;
      slope[p] = load_words<Words4>(a.dy[row] + col(p));
      from[p] = load_words<Words4>(a.x[row] + col(p));
    }
    float products = 0;
#pragma unroll
    for (int p = 0; p < kept_packs; ++p) {
      if (col(p) >= a.cols) continue;
      const auto scale = a.scale.template at<width>(col(p));
      const auto g = unpack<T>(slope[p]);
      const auto n = unpack<T>(from[p]);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float product = g.v[i] * (n.v[i] * inverse);
        dw[p][i] += product;
        products += product * scale.v[i];
      }
    }
    return products;
  }

  __device__ __forceinline__ void write_dx(const BackwardRows<T>& a, int row, float inverse,
                                           float mean) const {
#pragma unroll
    for (int p = 0; p < kept_packs; ++p) {
      if (col(p) >= a.cols) continue;
      const auto scale = a.scale.template at<width>(col(p));
      auto g = unpack<T>(slope[p]);
      const auto n = unpack<T>(from[p]);
      const auto old = a.accumulate ? load<width>(a.dx[row] + col(p)) : Pack<width>{};
#pragma unroll
      for (int i = 0; i < width; ++i)
        g.v[i] = (g.v[i] * scale.v[i] - n.v[i] * inverse * mean) * inverse + old.v[i];
      store<width>(a.dx[row] + col(p), g);
    }
  }
};

/// Computes dx for a block of rows, and their part of dw. With g = dy w and n = x / rms: dx = (g -
/// n mean(g n)) / rms, dw = sum over rows of dy n.
template <class T>
__global__ void __launch_bounds__(max_threads) backward_kept(BackwardRows<T> a) {
  KeptRow<T> kept;
  const int first = blockIdx.x * a.rows_a_block;
  const int last = first + a.rows_a_block < a.rows ? first + a.rows_a_block : a.rows;
  for (int row = first; row < last; ++row) {
    const float inverse = a.inverse_rms[row];
    const float total = block_sum(kept.take_in(a, row, inverse), dynamic_shared_memory<float>());
    kept.write_dx(a, row, inverse, a.row_sums.mean(row, total, a.cols));
    __syncthreads();  // before the next row's sums
  }
#pragma unroll
  for (int p = 0; p < kept_packs; ++p) {
    if (kept.col(p) >= a.cols) continue;
    auto* to = a.partial + static_cast<std::int64_t>(blockIdx.x) * a.cols + kept.col(p);
#pragma unroll
    for (int i = 0; i < kept.width; ++i) to[i] = kept.dw[p][i];
  }
}

/// Like backward_kept(), for any number of columns. The thread that owns a column sums its part of
/// dw in memory.
template <class T>
__global__ void __launch_bounds__(any_threads) backward_any(BackwardRows<T> a) {
  auto* sums = dynamic_shared_memory<float>();
  auto* dw = a.partial + static_cast<std::int64_t>(blockIdx.x) * a.cols;
  for (int col = threadIdx.x; col < a.cols; col += blockDim.x) dw[col] = 0;
  const int first = blockIdx.x * a.rows_a_block;
  const int last = first + a.rows_a_block < a.rows ? first + a.rows_a_block : a.rows;
  for (int row = first; row < last; ++row) {
    const float inverse = a.inverse_rms[row];
    float products = 0;
    for (int col = threadIdx.x; col < a.cols; col += blockDim.x) {
      const float product = load_one(a.dy[row] + col) * (load_one(a.x[row] + col) * inverse);
      dw[col] += product;
      products += product * a.scale.template at<1>(col).v[0];
    }
    const float mean = a.row_sums.mean(row, block_sum(products, sums), a.cols);
    for (int col = threadIdx.x; col < a.cols; col += blockDim.x) {
      const float g = load_one(a.dy[row] + col) * a.scale.template at<1>(col).v[0];
      const float old = a.accumulate ? load_one(a.dx[row] + col) : 0.0F;
      store_one(a.dx[row] + col, (g - load_one(a.x[row] + col) * inverse * mean) * inverse + old);
    }
    __syncthreads();
  }
}

/// sums[row] = sum of squares over a row of x, or of x + delta, which is also stored. One row per
/// block.
template <class T>
__global__ void __launch_bounds__(any_threads) square_sums(NormRows<T> a, float* sums) {
  const auto row = blockIdx.x;
  float squares = 0;
  for (int col = threadIdx.x; col < a.cols; col += blockDim.x) {
    float number = load_one(a.x[row] + col);
    if (a.delta.data) {
      store_one(a.sum[row] + col, number + load_one(a.delta[row] + col));
      number = load_one(a.sum[row] + col);  // rounded, as the norm will read it
    }
    squares += number * number;
  }
  const float total = block_sum(squares, dynamic_shared_memory<float>());
  if (threadIdx.x == 0) sums[row] = total;
}

/// sums[row] = sum of dy w x / rms over a row. One row per block.
template <class T>
__global__ void __launch_bounds__(any_threads) product_sums(BackwardRows<T> a, float* sums) {
  const auto row = blockIdx.x;
  const float inverse = a.inverse_rms[row];
  float products = 0;
  for (int col = threadIdx.x; col < a.cols; col += blockDim.x)
    products += load_one(a.dy[row] + col) * (load_one(a.x[row] + col) * inverse) *
                a.scale.template at<1>(col).v[0];
  const float total = block_sum(products, dynamic_shared_memory<float>());
  if (threadIdx.x == 0) sums[row] = total;
}

// --- Rows of several groups (heads): a warp per group ---

constexpr int group_warps = 8;
constexpr std::int64_t max_group = 1024;  // elements, for shared memory

template <class T>
__device__ __forceinline__ T* group_of(const Rows<T>& rows, std::int64_t group, int groups_a_row,
                                       int cols) {
  return rows[group / groups_a_row] + group % groups_a_row * cols;
}

template <int width, class T>
__global__ void __launch_bounds__(32 * group_warps)
    norm_groups(NormRows<T> a, std::int64_t groups, int groups_a_row) {
  const auto group = static_cast<std::int64_t>(blockIdx.x) * group_warps + threadIdx.x / 32;
  if (group >= groups) return;
  const int lane = threadIdx.x % 32;
  const T* from = group_of(a.x, group, groups_a_row, a.cols);
  T* to = group_of(a.y, group, groups_a_row, a.cols);
  float squares = 0;
  for (int col = lane * width; col < a.cols; col += 32 * width) {
    const auto values = load<width>(from + col);
#pragma unroll
    for (int i = 0; i < width; ++i) squares += values.v[i] * values.v[i];
  }
  const float inverse = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(a.cols) + a.eps);
  if (lane == 0) a.inverse_rms[group] = inverse;
  for (int col = lane * width; col < a.cols; col += 32 * width) {
    auto values = load<width>(from + col);
    const auto scale = a.scale.template at<width>(col);
#pragma unroll
    for (int i = 0; i < width; ++i) values.v[i] *= inverse * scale.v[i];
    store<width>(to + col, values);
  }
}

/// Computes dx for a block of groups, and their part of dw: each warp sums its own in shared
/// memory, then they are added in order.
template <int width, class T>
__global__ void __launch_bounds__(32 * group_warps)
    backward_groups(BackwardRows<T> a, int groups_a_row) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* all = dynamic_shared_memory<float>();  // (warps, cols)
  auto* dw = all + warp * a.cols;
  for (int col = lane; col < a.cols; col += 32) dw[col] = 0;
  __syncwarp();
  const int first = blockIdx.x * a.rows_a_block;
  const int last = first + a.rows_a_block < a.rows ? first + a.rows_a_block : a.rows;
  for (int group = first + warp; group < last; group += group_warps) {
    const float inverse = a.inverse_rms[group];
    const T* dy = group_of(a.dy, group, groups_a_row, a.cols);
    const T* x = group_of(a.x, group, groups_a_row, a.cols);
    T* dx = group_of(a.dx, group, groups_a_row, a.cols);
    float products = 0;
    for (int col = lane * width; col < a.cols; col += 32 * width) {
      const auto g = load<width>(dy + col), n = load<width>(x + col);
      const auto scale = a.scale.template at<width>(col);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float product = g.v[i] * (n.v[i] * inverse);
        dw[col + i] += product;
        products += product * scale.v[i];
      }
    }
    const float mean = warp_sum(products) / static_cast<float>(a.cols);
    for (int col = lane * width; col < a.cols; col += 32 * width) {
      auto g = load<width>(dy + col);
      const auto n = load<width>(x + col), scale = a.scale.template at<width>(col);
      const auto old = a.accumulate ? load<width>(dx + col) : Pack<width>{};
#pragma unroll
      for (int i = 0; i < width; ++i)
        g.v[i] = (g.v[i] * scale.v[i] - n.v[i] * inverse * mean) * inverse + old.v[i];
      store<width>(dx + col, g);
    }
  }
  __syncthreads();
  for (int col = threadIdx.x; col < a.cols; col += blockDim.x) {
    float total = 0;
    for (int w = 0; w < group_warps; ++w) total += all[w * a.cols + col];
    a.partial[static_cast<std::int64_t>(blockIdx.x) * a.cols + col] = total;
  }
}

/// Returns the threads needed to keep a row with `cols` elements in registers; 0 if it does not
/// fit.
template <class T>
std::int64_t threads_that_keep(std::int64_t cols, bool rows_aligned) {
  constexpr std::int64_t width = per_16_bytes<T>;
  if (!rows_aligned || cols % width != 0) return 0;
  const auto threads = divide_up(divide_up(cols, width * kept_packs), 32) * 32;
  return threads <= max_threads ? threads : 0;
}

template <class T>
NormRows<T> norm_rows(const RmsNormCall& c) {
  return {rows_of<T>(c.y),
          rows_of<T>(c.sum),
          rows_of<const T>(c.x),
          rows_of<const T>(c.delta),
          {c.w.as<T>(), c.offset},
          c.inverse_rms.as<float>(),
          static_cast<int>(c.w.numel()),
          c.eps,
          RowSums(c.row_sums)};
}

template <class T>
BackwardRows<T> backward_rows(const RmsNormBackwardCall& c, float* partial,
                              std::int64_t rows_a_block) {
  return {rows_of<T>(c.dx),
          rows_of<const T>(c.dy),
          rows_of<const T>(c.x),
          {c.w.as<T>(), c.offset},
          c.inverse_rms.as<float>(),
          partial,
          static_cast<int>(c.inverse_rms.numel()),
          static_cast<int>(rows_a_block),
          static_cast<int>(c.w.numel()),
          c.accumulate_dx == Accumulate::yes,
          RowSums(c.row_sums)};
}

template <class T>
void launch_norm(Stream& stream, const NormRows<T>& a, std::int64_t rows, bool rows_aligned) {
  const auto threads = threads_that_keep<T>(a.cols, rows_aligned);
  if (threads > 0)
    launch(&norm_kept<T>, {rows}, threads, shared_sums, stream, a);
  else
    launch(&norm_any<T>, {rows}, any_threads, shared_sums, stream, a);
}

/// Returns the groups in each row of x, and checks that the statistics and the weight fit them.
std::int64_t groups_a_row(const Tensor& x, const Tensor& w, const Tensor& inverse_rms,
                          bool may_divide) {
  expects(x.cols() % w.numel() == 0 && inverse_rms.numel() * w.numel() == x.numel() &&
              ((may_divide && w.numel() <= max_group) || w.numel() == x.cols()),
          "rms_norm: {} statistics and a weight of {} for ({}, {})", inverse_rms.numel(), w.numel(),
          x.rows(), x.cols());
  return x.cols() / w.numel();
}

template <class T>
void launch_groups(Stream& stream, const RmsNormCall& c, std::int64_t groups_in_row) {
  constexpr int wide = per_16_bytes<T>;
  const auto groups = c.inverse_rms.numel();
  const bool can = c.w.numel() % wide == 0 && aligned(c.y, c.x, c.w);
  with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
    launch(&norm_groups<width, T>, {divide_up(groups, group_warps)}, 32 * group_warps, 0, stream,
           norm_rows<T>(c), groups, static_cast<int>(groups_in_row));
  });
}

template <class T>
void launch_backward_groups(Stream& stream, const RmsNormBackwardCall& c, const BackwardRows<T>& a,
                            std::int64_t blocks, std::int64_t groups_in_row) {
  constexpr int wide = per_16_bytes<T>;
  const bool can = a.cols % wide == 0 && aligned(c.dx, c.dy, c.x, c.w);
  with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
    launch(&backward_groups<width, T>, {blocks}, 32 * group_warps, group_warps * a.cols * 4, stream,
           a, static_cast<int>(groups_in_row));
  });
}

template <class T>
void launch_backward(Stream& stream, const RmsNormBackwardCall& c, const BackwardRows<T>& a,
                     std::int64_t blocks) {
  const auto threads = threads_that_keep<T>(a.cols, aligned(c.dx, c.dy, c.x, c.w));
  if (threads > 0)
    launch(&backward_kept<T>, {blocks}, threads, shared_sums, stream, a);
  else
    launch(&backward_any<T>, {blocks}, any_threads, shared_sums, stream, a);
}

}  // namespace

void rms_norm(Stream& stream, const RmsNormCall& c) {
  const auto& x = c.x;
  expects(same_matrix_shape(c.y, x), "rms_norm shapes");
  const auto groups = groups_a_row(x, c.w, c.inverse_rms, !c.delta && !c.row_sums);
  expects(static_cast<bool>(c.sum) == static_cast<bool>(c.delta), "rms_norm: delta without sum");
  expects(!c.delta || (same_matrix_shape(c.delta, x) && same_matrix_shape(c.sum, x)),
          "rms_norm shapes of delta and sum");
  expects(!c.row_sums || !c.delta, "rms_norm: row_sums are of the sum");
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    if (groups > 1) return launch_groups<T>(stream, c, groups);
    launch_norm<T>(stream, norm_rows<T>(c), x.rows(), aligned(c.y, c.sum, x, c.delta, c.w));
  });
}

void rms_norm_row_sums(Stream& stream, const RmsNormCall& c, Tensor sums) {
  expects(sums.numel() == c.x.rows() && static_cast<bool>(c.sum) == static_cast<bool>(c.delta),
          "rms_norm_row_sums: {} sums of {} rows", sums.numel(), c.x.rows());
  if (c.x.numel() == 0) return;
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&square_sums<T>, {c.x.rows()}, any_threads, shared_sums, stream, norm_rows<T>(c),
           sums.as<float>());
  });
}

void rms_norm_backward_row_sums(Stream& stream, const RmsNormBackwardCall& c, Tensor sums) {
  expects(sums.numel() == c.x.rows() && same_matrix_shape(c.dy, c.x),
          "rms_norm_backward_row_sums: {} sums of {} rows", sums.numel(), c.x.rows());
  if (c.x.numel() == 0) return;
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&product_sums<T>, {c.x.rows()}, any_threads, shared_sums, stream,
           backward_rows<T>(c, nullptr, 0), sums.as<float>());
  });
}

void rms_norm_backward(Stream& stream, const RmsNormBackwardCall& c) {
  const auto& x = c.x;
  expects(same_matrix_shape(c.dx, x) && same_matrix_shape(c.dy, x) &&
              (!c.dw || c.dw.numel() == c.w.numel()),
          "rms_norm_backward shapes");
  const auto groups = groups_a_row(x, c.w, c.inverse_rms, !c.row_sums);
  if (x.numel() == 0) return;
  const auto rows = c.inverse_rms.numel(), cols = c.w.numel();
  const auto rows_a_block = norm_rows_a_block(rows);
  const auto blocks = divide_up(rows, rows_a_block);
  const Scratch partial(stream, blocks * cols * 4);
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto a = backward_rows<T>(c, partial.as<float>(), rows_a_block);
    if (groups > 1)
      launch_backward_groups<T>(stream, c, a, blocks, groups);
    else
      launch_backward<T>(stream, c, a, blocks);
  });
  add_partials(stream, c.dw, c.accumulate_dw, partial.as<float>(), blocks, cols);
}

}  // namespace LLAMESH_OPS_CUDA
