#include "ops/cuda/kernels.hpp"
#include "ops/cuda/norm_partials.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound, with the same traffic as RMSNorm. A block passes over its row again for the
// variance and for the result: the row is in L1 cache by then.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int all_warps = threads / 32;
constexpr std::int64_t shared_sums = 3 * all_warps * 4;

template <class T>
struct LayerRows {
  Rows<T> y, sum;
  Rows<const T> x, delta;  // delta.data null: none
  const T *w, *b;
  float *mean, *inverse_std;
  int cols;
  float eps;
};

/// One row per block. As on the CPU, the mean is in two parts: as summed, and the rest that its
/// rounding left.
template <int width, class T>
__global__ void __launch_bounds__(threads) forward(LayerRows<T> a) {
  const auto row = blockIdx.x;
  auto* shared = dynamic_shared_memory<float>();
  const T* from = a.delta.data ? a.sum[row] : a.x[row];
  float total = 0;
  for (int col = threadIdx.x * width; col < a.cols; col += threads * width) {
    if (a.delta.data) {
      auto sum = load<width>(a.x[row] + col);
      const auto added = load<width>(a.delta[row] + col);
#pragma unroll
      for (int i = 0; i < width; ++i) sum.v[i] += added.v[i];
      store<width>(a.sum[row] + col, sum);
    }
    const auto values = load<width>(from + col);  // rounded, as the backward pass will read it
#pragma unroll
    for (int i = 0; i < width; ++i) total += values.v[i];
  }
  const float mean = block_sum(total, shared) / static_cast<float>(a.cols);
  float deviations = 0, squares = 0;
  for (int col = threadIdx.x * width; col < a.cols; col += threads * width) {
    const auto values = load<width>(from + col);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float deviation = values.v[i] - mean;
      deviations += deviation;
      squares += deviation * deviation;
    }
  }
  const float rest = block_sum(deviations, shared + all_warps) / static_cast<float>(a.cols);
  const float variance =
      block_sum(squares, shared + 2 * all_warps) / static_cast<float>(a.cols) - rest * rest;
  const float inverse = 1.0F / sqrtf(fmaxf(0.0F, variance) + a.eps);
  if (threadIdx.x == 0) {
    a.mean[row] = mean + rest;
    a.inverse_std[row] = inverse;
  }
  for (int col = threadIdx.x * width; col < a.cols; col += threads * width) {
    auto values = load<width>(from + col);
    const auto w = load<width>(a.w + col), b = load<width>(a.b + col);
#pragma unroll
    for (int i = 0; i < width; ++i)
      values.v[i] = (values.v[i] - mean - rest) * inverse * w.v[i] + b.v[i];
    store<width>(a.y[row] + col, values);
  }
}

template <class T>
struct BackwardRows {
  Rows<T> dx;
  Rows<const T> dy, x;
  const T* w;
  const float *mean, *inverse_std;
  float* partial;  // (blocks, 2 cols): each block's part of dw, then of db
  int rows, rows_a_block, cols;
  bool accumulate;
};

/// Computes dx for a block of rows, and their part of dw and db. With g = dy w and the normalized
/// x, n: dx = (g - mean(g) - n mean(g n)) / std, dw = sum over rows of dy n, db = sum over rows of
/// dy. The thread that owns a column sums its part of dw and db in memory.
template <int width, class T>
__global__ void __launch_bounds__(threads) backward(BackwardRows<T> a) {
  auto* shared = dynamic_shared_memory<float>();
  auto* dw = a.partial + static_cast<std::int64_t>(blockIdx.x) * 2 * a.cols;
  auto* db = dw + a.cols;
  for (int col = threadIdx.x * width; col < a.cols; col += threads * width) {
    store<width>(dw + col, Pack<width>{});
    store<width>(db + col, Pack<width>{});
  }
  const int first = blockIdx.x * a.rows_a_block;
  const int last = first + a.rows_a_block < a.rows ? first + a.rows_a_block : a.rows;
  for (int row = first; row < last; ++row) {
    const float mean = a.mean[row], inverse = a.inverse_std[row];
    float g_sum = 0, gn_sum = 0;
    for (int col = threadIdx.x * width; col < a.cols; col += threads * width) {
      const auto dy = load<width>(a.dy[row] + col), x = load<width>(a.x[row] + col);
      const auto w = load<width>(a.w + col);
      auto dw_sum = load<width>(dw + col), db_sum = load<width>(db + col);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float n = (x.v[i] - mean) * inverse, g = dy.v[i] * w.v[i];
        dw_sum.v[i] += dy.v[i] * n;
        db_sum.v[i] += dy.v[i];
        g_sum += g;
        gn_sum += g * n;
      }
      store<width>(dw + col, dw_sum);
      store<width>(db + col, db_sum);
    }
    const float g_mean = block_sum(g_sum, shared) / static_cast<float>(a.cols);
    const float gn_mean = block_sum(gn_sum, shared + all_warps) / static_cast<float>(a.cols);
    for (int col = threadIdx.x * width; col < a.cols; col += threads * width) {
      auto dy = load<width>(a.dy[row] + col);
      const auto x = load<width>(a.x[row] + col), w = load<width>(a.w + col);
      const auto old = a.accumulate ? load<width>(a.dx[row] + col) : Pack<width>{};
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float n = (x.v[i] - mean) * inverse;
        dy.v[i] = (dy.v[i] * w.v[i] - g_mean - n * gn_mean) * inverse + old.v[i];
      }
      store<width>(a.dx[row] + col, dy);
    }
    __syncthreads();  // before the next row's sums
  }
}

}  // namespace

void layer_norm(Stream& stream, const LayerNormCall& c) {
  const auto& x = c.x;
  expects(same_matrix_shape(c.y, x) && c.w.numel() == x.cols() && c.b.numel() == x.cols() &&
              c.mean.numel() == x.rows() && c.inverse_std.numel() == x.rows(),
          "layer_norm shapes");
  expects(static_cast<bool>(c.sum) == static_cast<bool>(c.delta), "layer_norm: delta without sum");
  expects(!c.delta || (same_matrix_shape(c.delta, x) && same_matrix_shape(c.sum, x)),
          "layer_norm shapes of delta and sum");
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = x.cols() % wide == 0 && aligned(c.y, c.sum, x, c.delta, c.w, c.b);
    const LayerRows<T> rows{rows_of<T>(c.y),
                            rows_of<T>(c.sum),
                            rows_of<const T>(x),
                            rows_of<const T>(c.delta),
                            c.w.as<T>(),
                            c.b.as<T>(),
                            c.mean.as<float>(),
                            c.inverse_std.as<float>(),
                            static_cast<int>(x.cols()),
                            c.eps};
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&forward<width, T>, {x.rows()}, threads, shared_sums, stream, rows);
    });
  });
}

void layer_norm_backward(Stream& stream, const LayerNormBackwardCall& c) {
  const auto& x = c.x;
  const auto cols = x.cols();
  expects(same_matrix_shape(c.dx, x) && same_matrix_shape(c.dy, x) && c.w.numel() == cols &&
              (!c.dw || c.dw.numel() == cols) && (!c.db || c.db.numel() == cols) &&
              c.mean.numel() == x.rows() && c.inverse_std.numel() == x.rows(),
          "layer_norm_backward shapes");
  if (x.numel() == 0) return;
  const auto rows_a_block = norm_rows_a_block(x.rows());
  const auto blocks = divide_up(x.rows(), rows_a_block);
  const Scratch partial(stream, blocks * 2 * cols * 4);
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = cols % wide == 0 && aligned(c.dx, c.dy, x, c.w);
    const BackwardRows<T> rows{rows_of<T>(c.dx),
                               rows_of<const T>(c.dy),
                               rows_of<const T>(x),
                               c.w.as<T>(),
                               c.mean.as<float>(),
                               c.inverse_std.as<float>(),
                               partial.as<float>(),
                               static_cast<int>(x.rows()),
                               static_cast<int>(rows_a_block),
                               static_cast<int>(cols),
                               c.accumulate_dx == Accumulate::yes};
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&backward<width, T>, {blocks}, threads, shared_sums, stream, rows);
    });
  });
  add_partials(stream, c.dw, c.accumulate_dw, partial.as<float>(), blocks, 2 * cols);
  add_partials(stream, c.db, c.accumulate_db, partial.as<float>() + cols, blocks, 2 * cols);
}

}  // namespace LLAMESH_OPS_CUDA
