#include "ops/row_norm.hpp"

#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound. Per element, forward reads x (and delta) and writes y (and the sum): 2 or 4
// accesses. Backward reads dy, x (and dx) and writes dx: 3 or 4. Rows of an RMSNorm stay in
// registers between their reduction and the use of the result. A LayerNorm passes over its row
// again for the variance and for the result: the row is in L1 cache by then.
namespace LLAMESH_OPS_CUDA {
namespace {

/// 16-byte packs that each thread keeps from a row.
constexpr int kept_packs = 4;
constexpr int max_threads = 512;
/// If a row is longer than that, or not a multiple of 16 bytes, elements are read twice.
constexpr int any_threads = 256;
constexpr int any_warps = any_threads / 32;
constexpr std::int64_t shared_sums = 32 * 4;
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

template <class T>
struct NormRows {
  Rows<T> y, sum;
  Rows<const T> x, delta;  // delta.data null: none
  Scale<T> scale;
  float* inverses;
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
  if (threadIdx.x == 0) a.inverses[row] = inverse;
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

/// Further arguments of a LayerNorm. They are not in NormRows, because arguments above 128 bytes
/// cost norm_kept() 8 registers.
template <class T>
struct Centering {
  float* means;
  const T* b;  // null: none
};

/// One row per block, any number of columns. As on the CPU, a LayerNorm's mean is in two parts: as
/// summed, and the rest that its rounding left.
template <NormKind kind, int width, class T>
__global__ void __launch_bounds__(any_threads) norm_any(NormRows<T> a, Centering<T> c) {
  const auto row = blockIdx.x;
  auto* shared = dynamic_shared_memory<float>();
  const T* from = a.delta.data ? a.sum[row] : a.x[row];
  float total = 0;
  for (int col = threadIdx.x * width; col < a.cols; col += any_threads * width) {
    if (a.delta.data) {
      auto sum = load<width>(a.x[row] + col);
      const auto added = load<width>(a.delta[row] + col);
#pragma unroll
      for (int i = 0; i < width; ++i) sum.v[i] += added.v[i];
      store<width>(a.sum[row] + col, sum);
    }
    const auto values = load<width>(from + col);  // rounded, as the backward pass will read it
#pragma unroll
    for (int i = 0; i < width; ++i)
      total += kind == NormKind::layer ? values.v[i] : values.v[i] * values.v[i];
  }
  float mean = 0, rest = 0;
  float variance = a.row_sums.mean(row, block_sum(total, shared), a.cols);
  if constexpr (kind == NormKind::layer) {
    mean = variance;
    float deviations = 0, squares = 0;
    for (int col = threadIdx.x * width; col < a.cols; col += any_threads * width) {
      const auto values = load<width>(from + col);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float deviation = values.v[i] - mean;
        deviations += deviation;
        squares += deviation * deviation;
      }
    }
    rest = block_sum(deviations, shared + any_warps) / static_cast<float>(a.cols);
    variance =
        block_sum(squares, shared + 2 * any_warps) / static_cast<float>(a.cols) - rest * rest;
    variance = fmaxf(0.0F, variance);
    if (threadIdx.x == 0) c.means[row] = mean + rest;
  }
  const float inverse = 1.0F / sqrtf(variance + a.eps);
  if (threadIdx.x == 0) a.inverses[row] = inverse;
  for (int col = threadIdx.x * width; col < a.cols; col += any_threads * width) {
    auto values = load<width>(from + col);
    const auto scale = a.scale.template at<width>(col);
    const auto b = kind == NormKind::layer && c.b ? load<width>(c.b + col) : Pack<width>{};
#pragma unroll
    for (int i = 0; i < width; ++i) {
      if constexpr (kind == NormKind::layer)
        values.v[i] = (values.v[i] - mean - rest) * inverse * scale.v[i] + b.v[i];
      else
        values.v[i] *= inverse * scale.v[i];
    }
    store<width>(a.y[row] + col, values);
  }
}

template <class T>
struct BackwardRows {
  Rows<T> dx;
  Rows<const T> dy, x;
  Scale<T> scale;
  const float* inverses;
  float* partial;  // (blocks, cols): each block's part of dw; for LayerNorm of dw, then of db
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
    const float inverse = a.inverses[row];
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

/// Like backward_kept(), for any number of columns. LayerNorm: with the mean of g subtracted from
/// g, and db = sum over rows of dy. The thread that owns a column sums its part of dw and db in
/// memory.
template <NormKind kind, int width, class T>
__global__ void __launch_bounds__(any_threads) backward_any(BackwardRows<T> a, const float* means) {
  constexpr bool layer = kind == NormKind::layer;
  auto* shared = dynamic_shared_memory<float>();
  auto* dw = a.partial + static_cast<std::int64_t>(blockIdx.x) * (layer ? 2 : 1) * a.cols;
  auto* db = dw + a.cols;
  for (int col = threadIdx.x * width; col < a.cols; col += any_threads * width) {
    store<width>(dw + col, Pack<width>{});
    if constexpr (layer) store<width>(db + col, Pack<width>{});
  }
  const int first = blockIdx.x * a.rows_a_block;
  const int last = first + a.rows_a_block < a.rows ? first + a.rows_a_block : a.rows;
  for (int row = first; row < last; ++row) {
    const float mean = layer ? means[row] : 0.0F, inverse = a.inverses[row];
    const auto normed = [&](float x) { return layer ? (x - mean) * inverse : x * inverse; };
    float g_sum = 0, gn_sum = 0;
    for (int col = threadIdx.x * width; col < a.cols; col += any_threads * width) {
      const auto dy = load<width>(a.dy[row] + col), x = load<width>(a.x[row] + col);
      const auto scale = a.scale.template at<width>(col);
      auto dw_sum = load<width>(dw + col);
      auto db_sum = layer ? load<width>(db + col) : Pack<width>{};
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float n = normed(x.v[i]), product = dy.v[i] * n;
        dw_sum.v[i] += product;
        if constexpr (layer) {
          const float g = dy.v[i] * scale.v[i];
          db_sum.v[i] += dy.v[i];
          g_sum += g;
          gn_sum += g * n;
        } else {
          gn_sum += product * scale.v[i];
        }
      }
      store<width>(dw + col, dw_sum);
      if constexpr (layer) store<width>(db + col, db_sum);
    }
    const float g_mean =
        layer ? block_sum(g_sum, shared + any_warps) / static_cast<float>(a.cols) : 0.0F;
    const float gn_total = block_sum(gn_sum, shared);
    const float gn_mean =
        layer ? gn_total / static_cast<float>(a.cols) : a.row_sums.mean(row, gn_total, a.cols);
    for (int col = threadIdx.x * width; col < a.cols; col += any_threads * width) {
      auto g = load<width>(a.dy[row] + col);
      const auto x = load<width>(a.x[row] + col), scale = a.scale.template at<width>(col);
      const auto old = a.accumulate ? load<width>(a.dx[row] + col) : Pack<width>{};
#pragma unroll
      for (int i = 0; i < width; ++i) {
        g.v[i] *= scale.v[i];
        if constexpr (layer) g.v[i] -= g_mean;
        g.v[i] = (g.v[i] - normed(x.v[i]) * gn_mean) * inverse + old.v[i];
      }
      store<width>(a.dx[row] + col, g);
    }
    __syncthreads();  // before the next row's sums
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
  const float inverse = a.inverses[row];
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
  if (lane == 0) a.inverses[group] = inverse;
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
    const float inverse = a.inverses[group];
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

// --- The gradients of a norm's parameters, from each block's part of them ---

constexpr int partial_groups = 32;

/// dw = or += the column sums of partial (count, cols), with `stride` elements from row to row.
/// Each of 32 warps sums every 32nd row, then the first warp adds up the warps.
template <class W>
__global__ void __launch_bounds__(32 * partial_groups)
    sum_partials(W* dw, const float* partial, int count, int cols, int stride, bool accumulate) {
  auto* sums = dynamic_shared_memory<float>();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int col = blockIdx.x * 32 + lane;
  float total = 0;
  if (col < cols)
    for (int i = group; i < count; i += partial_groups)
      total += partial[static_cast<std::int64_t>(i) * stride + col];
  sums[group * 32 + lane] = total;
  __syncthreads();
  if (group > 0 || col >= cols) return;
  total = accumulate ? load_one(dw + col) : 0.0F;
  for (int g = 0; g < partial_groups; ++g) total += sums[g * 32 + lane];
  store_one(dw + col, total);
}

/// Queues it for `blocks` parts, unless dw is empty.
void add_partials(Stream& stream, const Tensor& dw, Accumulate accumulate, const float* partial,
                  std::int64_t blocks, std::int64_t stride) {
  if (!dw) return;
  with_type(dw.dtype(), [&]<class W>(std::type_identity<W>) {
    launch(&sum_partials<W>, {divide_up(dw.numel(), 32)}, 32 * partial_groups,
           32 * partial_groups * 4, stream, dw.as<W>(), partial, static_cast<int>(blocks),
           static_cast<int>(dw.numel()), static_cast<int>(stride), accumulate == Accumulate::yes);
  });
}

// --- Launches ---

/// Returns the threads needed to keep a row with `cols` elements in registers; 0 if it does not
/// fit, or for LayerNorm.
template <NormKind kind, class T>
std::int64_t threads_that_keep(std::int64_t cols, bool rows_aligned) {
  constexpr std::int64_t width = per_16_bytes<T>;
  if (kind == NormKind::layer || !rows_aligned || cols % width != 0) return 0;
  const auto threads = divide_up(divide_up(cols, width * kept_packs), 32) * 32;
  return threads <= max_threads ? threads : 0;
}

template <class T>
T* pointer(const Tensor& tensor) {
  return tensor ? tensor.as<T>() : nullptr;
}

template <class T>
NormRows<T> norm_rows(const RowNormCall& c) {
  return {rows_of<T>(c.y),
          rows_of<T>(c.sum),
          rows_of<const T>(c.x),
          rows_of<const T>(c.delta),
          {c.w.as<T>(), c.offset},
          c.inverse.as<float>(),
          static_cast<int>(c.w.numel()),
          c.eps,
          RowSums(c.row_sums)};
}

template <class T>
BackwardRows<T> backward_rows(const RowNormBackwardCall& c, float* partial,
                              std::int64_t rows_a_block) {
  return {rows_of<T>(c.dx),
          rows_of<const T>(c.dy),
          rows_of<const T>(c.x),
          {c.w.as<T>(), c.offset},
          c.inverse.as<float>(),
          partial,
          static_cast<int>(c.inverse.numel()),
          static_cast<int>(rows_a_block),
          static_cast<int>(c.w.numel()),
          c.accumulate_dx == Accumulate::yes,
          RowSums(c.row_sums)};
}

/// Calls body with the width for norm_any() and backward_any(). RMSNorm takes these if its rows do
/// not stay in registers: they are long or not aligned.
template <NormKind kind, class T, class Body>
void with_any_width(int cols, bool rows_aligned, const Body& body) {
  constexpr int wide = kind == NormKind::layer ? per_16_bytes<T> : 1;
  with_width<wide>(rows_aligned && cols % wide == 0, body);
}

template <NormKind kind, class T>
void launch_norm(Stream& stream, const NormRows<T>& a, const RowNormCall& c, bool rows_aligned) {
  const auto rows = c.x.rows();
  const auto threads = threads_that_keep<kind, T>(a.cols, rows_aligned);
  if (threads > 0) return launch(&norm_kept<T>, {rows}, threads, shared_sums, stream, a);
  const Centering<T> centering{pointer<float>(c.mean), pointer<T>(c.b)};
  with_any_width<kind, T>(a.cols, rows_aligned, [&]<int width>(std::integral_constant<int, width>) {
    launch(&norm_any<kind, width, T>, {rows}, any_threads, shared_sums, stream, a, centering);
  });
}

template <NormKind kind, class T>
void launch_backward(Stream& stream, const BackwardRows<T>& a, const Tensor& means,
                     std::int64_t blocks, bool rows_aligned) {
  const auto threads = threads_that_keep<kind, T>(a.cols, rows_aligned);
  if (threads > 0) return launch(&backward_kept<T>, {blocks}, threads, shared_sums, stream, a);
  with_any_width<kind, T>(a.cols, rows_aligned, [&]<int width>(std::integral_constant<int, width>) {
    launch(&backward_any<kind, width, T>, {blocks}, any_threads, shared_sums, stream, a,
           pointer<float>(means));
  });
}

template <class T>
void launch_groups(Stream& stream, const NormRows<T>& a, std::int64_t groups, std::int64_t in_row,
                   bool rows_aligned) {
  constexpr int wide = per_16_bytes<T>;
  with_width<wide>(rows_aligned && a.cols % wide == 0,
                   [&]<int width>(std::integral_constant<int, width>) {
                     launch(&norm_groups<width, T>, {divide_up(groups, group_warps)},
                            32 * group_warps, 0, stream, a, groups, static_cast<int>(in_row));
                   });
}

template <class T>
void launch_backward_groups(Stream& stream, const BackwardRows<T>& a, std::int64_t blocks,
                            std::int64_t in_row, bool rows_aligned) {
  constexpr int wide = per_16_bytes<T>;
  with_width<wide>(rows_aligned && a.cols % wide == 0,
                   [&]<int width>(std::integral_constant<int, width>) {
                     launch(&backward_groups<width, T>, {blocks}, 32 * group_warps,
                            group_warps * a.cols * 4, stream, a, static_cast<int>(in_row));
                   });
}

void expect_fits(std::int64_t groups, const Tensor& w) {
  expects(groups == 1 || w.numel() <= max_group, "norm: groups of {} columns exceed {}", w.numel(),
          max_group);
}

template <NormKind kind>
void forward(Stream& stream, const RowNormCall& c) {
  const auto groups = check(c, kind);
  expect_fits(groups, c.w);
  if (c.x.numel() == 0) return;
  const bool rows_aligned = aligned(c.y, c.sum, c.x, c.delta, c.w, c.b);
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto a = norm_rows<T>(c);
    if (groups > 1) return launch_groups<T>(stream, a, c.inverse.numel(), groups, rows_aligned);
    launch_norm<kind, T>(stream, a, c, rows_aligned);
  });
}

template <NormKind kind>
void backward(Stream& stream, const RowNormBackwardCall& c) {
  const auto groups = check(c, kind);
  expect_fits(groups, c.w);
  if (c.x.numel() == 0) return;
  const bool rows_aligned = aligned(c.dx, c.dy, c.x, c.w);
  const auto rows = c.inverse.numel(), cols = c.w.numel();
  // The partition depends on the number of rows only: 4 blocks on each of 132 multiprocessors.
  const auto rows_a_block = divide_up(rows, 528);
  const auto blocks = divide_up(rows, rows_a_block);
  const auto stride = kind == NormKind::layer ? 2 * cols : cols;
  const Scratch partial(stream, blocks * stride * 4);
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto a = backward_rows<T>(c, partial.as<float>(), rows_a_block);
    if (groups > 1) return launch_backward_groups<T>(stream, a, blocks, groups, rows_aligned);
    launch_backward<kind, T>(stream, a, c.mean, blocks, rows_aligned);
  });
  add_partials(stream, c.dw, c.accumulate_dw, partial.as<float>(), blocks, stride);
  add_partials(stream, c.db, c.accumulate_db, partial.as<float>() + cols, blocks, stride);
}

}  // namespace

void rms_norm(Stream& stream, const RowNormCall& c) {
  forward<NormKind::rms>(stream, c);
}

void layer_norm(Stream& stream, const RowNormCall& c) {
  forward<NormKind::layer>(stream, c);
}

void rms_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  backward<NormKind::rms>(stream, c);
}

void layer_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  backward<NormKind::layer>(stream, c);
}

void rms_norm_row_sums(Stream& stream, const RowNormCall& c, Tensor sums) {
  check_sums(c, sums);
  if (c.x.numel() == 0) return;
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&square_sums<T>, {c.x.rows()}, any_threads, shared_sums, stream, norm_rows<T>(c),
           sums.as<float>());
  });
}

void rms_norm_backward_row_sums(Stream& stream, const RowNormBackwardCall& c, Tensor sums) {
  check_sums(c, sums);
  if (c.x.numel() == 0) return;
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&product_sums<T>, {c.x.rows()}, any_threads, shared_sums, stream,
           backward_rows<T>(c, nullptr, 0), sums.as<float>());
  });
}

}  // namespace LLAMESH_OPS_CUDA
