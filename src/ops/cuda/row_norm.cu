#include "ops/cuda/fp8.cuh"
#include "ops/cuda/row_norm.cuh"

// Memory-bound. Per element, it reads x (and delta) and writes y (and the sum): 2 or 4 accesses.
// Rows of an RMSNorm stay in registers between their reduction and the use of the result. A
// LayerNorm passes over its row again for the variance and for the result: the row is in L1 cache
// by then.
namespace LLAMESH_OPS_CUDA {
namespace {

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

/// One row per block, kept in registers as stored: first what is normalized, in the end y.
template <class T>
__device__ __forceinline__ void norm_row(const NormRows<T>& a, Words4 (&kept)[kept_packs]) {
  constexpr int width = per_16_bytes<T>;
  const auto row = blockIdx.x;
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
    kept[p] = pack<T>(values);
    store_words(a.y[row] + col, kept[p]);
  }
}

template <class T>
__global__ void __launch_bounds__(max_kept_threads) norm_kept(NormRows<T> a) {
  Words4 kept[kept_packs];
  norm_row(a, kept);
}

/// The same with y quantized.
template <class T>
__global__ void __launch_bounds__(max_kept_threads) norm_kept_in_fp8(NormRows<T> a, Fp8Rows q) {
  Words4 kept[kept_packs];
  norm_row(a, kept);
  auto* not_read = dynamic_shared_memory<std::uint32_t>() + max_kept_threads / 32;
  quantize_kept<T>(q, kept, blockIdx.x, a.cols, not_read);
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

}  // namespace

void rms_norm(Stream& stream, const RowNormCall& c) {
  forward<NormKind::rms>(stream, c);
}

void rms_norm_and_quantize(Stream& stream, const RowNormCall& c, const Fp8Matrix& q) {
  expects(same_matrix_shape(q.values, c.y), "rms_norm_and_quantize shapes");
  const bool whole_rows = check(c, NormKind::rms) == 1;
  const bool rows_aligned = whole_rows && aligned(c.y, c.sum, c.x, c.delta, c.w, q.values);
  if (c.x.numel() == 0) return;
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto threads = threads_that_keep<NormKind::rms, T>(c.y.cols(), rows_aligned);
    if (threads > 0)
      return launch(&norm_kept_in_fp8<T>, {c.x.rows()}, threads, 2 * shared_sums, stream,
                    norm_rows<T>(c), rows_of(q));
    rms_norm(stream, c);
    quantize_rows(stream, q, c.y);
  });
}

void layer_norm(Stream& stream, const RowNormCall& c) {
  forward<NormKind::layer>(stream, c);
}

void rms_norm_row_sums(Stream& stream, const RowNormCall& c, Tensor sums) {
  check_sums(c, sums);
  if (c.x.numel() == 0) return;
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&square_sums<T>, {c.x.rows()}, any_threads, shared_sums, stream, norm_rows<T>(c),
           sums.as<float>());
  });
}

}  // namespace LLAMESH_OPS_CUDA
