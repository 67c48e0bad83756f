#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: add_bias reads and writes y once, column_sums reads dy once.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr std::int64_t max_row_blocks = 528;
/// Warps that share 32 columns in column_sums.
constexpr int groups = 32;

/// A thread keeps one element of b and adds it to every gridDim.y-th row.
template <class T, class B>
__global__ void __launch_bounds__(threads) add_to_rows(Rows<T> y, const B* b, int rows, int cols) {
  const int col = blockIdx.x * threads + threadIdx.x;
  if (col >= cols) return;
  const float bias = load_one(b + col);
  for (int row = blockIdx.y; row < rows; row += gridDim.y)
    store_one(y[row] + col, load_one(y[row] + col) + bias);
}

/// Each warp sums every 32nd row, then the first one adds up the warps.
template <class T, class W>
__global__ void __launch_bounds__(32 * groups)
    sum_rows(W* db, Rows<const T> dy, int rows, int cols, bool accumulate) {
  auto* sums = dynamic_shared_memory<float>();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int col = blockIdx.x * 32 + lane;
  float total = 0;
  if (col < cols)
    for (int row = group; row < rows; row += groups) total += load_one(dy[row] + col);
  sums[group * 32 + lane] = total;
  __syncthreads();
  if (group > 0 || col >= cols) return;
  total = accumulate ? load_one(db + col) : 0.0F;
  for (int g = 0; g < groups; ++g) total += sums[g * 32 + lane];
  store_one(db + col, total);
}

}  // namespace

void add_bias(Stream& stream, Tensor y, Tensor b) {
  expects(y.cols() == b.numel(), "add_bias: {} to {} columns", b.numel(), y.cols());
  if (y.numel() == 0) return;
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    with_type(b.dtype(), [&]<class B>(std::type_identity<B>) {
      launch(&add_to_rows<T, B>,
             {divide_up(y.cols(), threads), std::min<std::int64_t>(y.rows(), max_row_blocks)},
             threads, 0, stream, rows_of<T>(y), static_cast<const B*>(b.as<B>()),
             static_cast<int>(y.rows()), static_cast<int>(y.cols()));
    });
  });
}

void column_sums(Stream& stream, Tensor db, Tensor dy, Accumulate accumulate) {
  expects(dy.cols() == db.numel(), "column_sums: {} sums of {} columns", db.numel(), dy.cols());
  if (db.numel() == 0) return;
  with_type(dy.dtype(), [&]<class T>(std::type_identity<T>) {
    with_type(db.dtype(), [&]<class W>(std::type_identity<W>) {
      launch(&sum_rows<T, W>, {divide_up(dy.cols(), 32)}, 32 * groups, 32 * groups * 4, stream,
             db.as<W>(), rows_of<const T>(dy), static_cast<int>(dy.rows()),
             static_cast<int>(dy.cols()), accumulate == Accumulate::yes);
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
