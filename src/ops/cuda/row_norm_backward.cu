#include "ops/cuda/row_norm.cuh"

// Memory-bound. Per element, it reads dy, x (and dx) and writes dx: 3 or 4 accesses. Rows of an
// RMSNorm stay in registers between their reduction and the use of the result.
namespace LLAMESH_OPS_CUDA {
namespace {

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
__global__ void __launch_bounds__(max_kept_threads) backward_kept(BackwardRows<T> a) {
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
void launch_backward_groups(Stream& stream, const BackwardRows<T>& a, std::int64_t blocks,
                            std::int64_t in_row, bool rows_aligned) {
  constexpr int wide = per_16_bytes<T>;
  with_width<wide>(rows_aligned && a.cols % wide == 0,
                   [&]<int width>(std::integral_constant<int, width>) {
                     launch(&backward_groups<width, T>, {blocks}, 32 * group_warps,
                            group_warps * a.cols * 4, stream, a, static_cast<int>(in_row));
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

void rms_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  backward<NormKind::rms>(stream, c);
}

void layer_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  backward<NormKind::layer>(stream, c);
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
