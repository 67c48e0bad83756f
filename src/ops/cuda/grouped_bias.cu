#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

#include <algorithm>

// Memory-bound: grouped_bias reads and writes y once; its backward pass reads dy once for db and
// once for dweights. The host does not know the rows of an expert, so blocks read the starts.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;
constexpr std::int64_t max_row_blocks = 528;
/// Warps that share 32 columns in sum_rows.
constexpr int groups = 32;

/// Rows in expert order.
struct ExpertRows {
  const std::int32_t* starts;
  int experts, rows;

  ExpertRows(const Tensor& all_starts, std::int64_t all_rows)
      : starts(all_starts.as<std::int32_t>()),
        experts(static_cast<int>(all_starts.numel() - 1)),
        rows(static_cast<int>(all_rows)) {}

  /// Traps if the starts are not from 0 to all rows.
  __device__ __forceinline__ void check() const {
    if (starts[0] != 0 || starts[experts] != rows) __trap();
  }
  /// Returns the row's expert, by bisection. Traps if its rows end beyond all rows.
  __device__ __forceinline__ int expert_of(int row) const {
    int low = 0, high = experts;  // starts[low] <= row < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (starts[middle] <= row)
        low = middle;
      else
        high = middle;
    }
    if (starts[low + 1] > rows) __trap();
    return low;
  }
};

/// A block has neighboring rows. A thread keeps its elements of b from row to row, until the next
/// expert.
template <int width, class T, class B>
__global__ void __launch_bounds__(threads)
    add_to_rows(Rows<T> y, Rows<const B> b, ExpertRows of, int rows_a_block, int cols) {
  of.check();
  const int col = (blockIdx.x * threads + threadIdx.x) * width;
  if (col >= cols) return;
  const int first = blockIdx.y * rows_a_block;
  const int last = first + rows_a_block < of.rows ? first + rows_a_block : of.rows;
  int end = first;  // of the expert's rows
  Pack<width> bias = {};
  for (int row = first; row < last; ++row) {
    if (row == end) {
      const int expert = of.expert_of(row);
      end = of.starts[expert + 1];
      bias = load<width>(b[expert] + col);
    }
    auto values = load<width>(y[row] + col);
#pragma unroll
    for (int i = 0; i < width; ++i) values.v[i] += bias.v[i];
    store<width>(y[row] + col, values);
  }
}

/// One expert along grid y. Each warp sums every 32nd of its rows, then the first one adds up the
/// warps.
template <class T, class W>
__global__ void __launch_bounds__(32 * groups)
    sum_rows(Rows<W> db, Rows<const T> dy, const float* weights, ExpertRows of, int cols,
             bool accumulate) {
  of.check();
  auto* const sums = dynamic_shared_memory<float>();
  const int expert = blockIdx.y, first = of.starts[expert], last = of.starts[expert + 1];
  if (first < 0 || last < first || last > of.rows) __trap();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int col = blockIdx.x * 32 + lane;
  float total = 0;
  if (col < cols)
    for (int row = first + group; row < last; row += groups)
      total += (weights != nullptr ? weights[row] : 1.0F) * load_one(dy[row] + col);
  sums[group * 32 + lane] = total;
  __syncthreads();
  if (group > 0 || col >= cols) return;
  auto* const to = db[expert] + col;
  total = accumulate ? load_one(to) : 0.0F;
  for (int g = 0; g < groups; ++g) total += sums[g * 32 + lane];
  store_one(to, total);
}

/// One row per warp.
template <int width, class T>
__global__ void __launch_bounds__(threads)
    add_dots(float* dweights, Rows<const T> dy, Rows<const T> b, ExpertRows of, int cols) {
  of.check();
  const int row = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= of.rows) return;
  const T* const bias = b[of.expert_of(row)];
  float dot = 0;
  for (int col = lane * width; col < cols; col += 32 * width) {
    const auto d = load<width>(dy[row] + col), x = load<width>(bias + col);
#pragma unroll
    for (int i = 0; i < width; ++i) dot += d.v[i] * x.v[i];
  }
  dot = warp_sum(dot);
  if (lane == 0) dweights[row] += dot;
}

template <class T>
void launch_add_dots(Stream& stream, const GroupedBiasBackwardCall& c) {
  constexpr int wide = per_16_bytes<T>;
  const bool can = c.dy.cols() % wide == 0 && aligned(c.dy, c.b);
  with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
    launch(&add_dots<width, T>, {divide_up(c.dy.rows(), warps)}, threads, 0, stream,
           c.dweights.as<float>(), rows_of<const T>(c.dy), rows_of<const T>(c.b),
           ExpertRows(c.starts, c.dy.rows()), static_cast<int>(c.dy.cols()));
  });
}

template <class T, class W>
void launch_sum_rows(Stream& stream, const GroupedBiasBackwardCall& c) {
  launch(&sum_rows<T, W>, {divide_up(c.db.cols(), 32), c.db.rows()}, 32 * groups, 32 * groups * 4,
         stream, rows_of<W>(c.db), rows_of<const T>(c.dy),
         c.weights ? static_cast<const float*>(c.weights.as<float>()) : nullptr,
         ExpertRows(c.starts, c.dy.rows()), static_cast<int>(c.dy.cols()),
         c.accumulate == Accumulate::yes);
}

}  // namespace

void grouped_bias(Stream& stream, Tensor y, Tensor b, Tensor starts) {
  expects(y.cols() == b.cols() && starts.numel() == b.rows() + 1, "grouped_bias shapes");
  if (y.numel() == 0) return;
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    with_type(b.dtype(), [&]<class B>(std::type_identity<B>) {
      constexpr int wide = per_16_bytes<T>;
      const bool can = y.cols() % wide == 0 && aligned(y, b);
      const auto rows_a_block = divide_up(y.rows(), std::min(y.rows(), max_row_blocks));
      with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
        launch(&add_to_rows<width, T, B>,
               {divide_up(y.cols(), threads * width), divide_up(y.rows(), rows_a_block)}, threads,
               0, stream, rows_of<T>(y), rows_of<const B>(b), ExpertRows(starts, y.rows()),
               static_cast<int>(rows_a_block), static_cast<int>(y.cols()));
      });
    });
  });
}

void grouped_bias_backward(Stream& stream, const GroupedBiasBackwardCall& c) {
  const auto rows = c.dy.rows(), experts = c.starts.numel() - 1;
  const auto is_bias = [&](const Tensor& t) {
    return t.rows() == experts && t.cols() == c.dy.cols();
  };
  const auto has_rows = [&](const Tensor& t) { return t.numel() == rows && t.dense(); };
  const bool takes_b = c.b && is_bias(c.b) && c.b.dtype() == c.dy.dtype();
  expects((!c.weights || has_rows(c.weights)) && (!c.db || is_bias(c.db)) &&
              (!c.dweights || (has_rows(c.dweights) && takes_b)),
          "grouped_bias_backward shapes");
  with_type(c.dy.dtype(), [&]<class T>(std::type_identity<T>) {
    if (c.dweights && rows > 0) launch_add_dots<T>(stream, c);
    if (!c.db || c.db.numel() == 0) return;
    with_type(c.db.dtype(),
              [&]<class W>(std::type_identity<W>) { launch_sum_rows<T, W>(stream, c); });
  });
}

}  // namespace LLAMESH_OPS_CUDA
