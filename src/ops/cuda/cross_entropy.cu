#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: per token the loss reads V logits; the gradient reads and writes them once more, so
// bf16 moves 6 bytes per logit. A row exceeds shared memory, so it is read twice. A split
// vocabulary takes two kernels, with a gather of the partial sums in between.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int max_threads = 512;
constexpr float lowest = -3.0e38F;  // finite, so that differences are never NaN

/// A sum of exponentials, stored as sum * exp(most).
struct RunningSum {
  float most = lowest;
  float sum = 0;

  template <class T, int width>
  __device__ __forceinline__ void add(const Pack<width>& x) {
    float higher = most;
#pragma unroll
    for (int i = 0; i < width; ++i) higher = fmaxf(higher, x.v[i]);
    sum *= exp_for<T>(most - higher);
#pragma unroll
    for (int i = 0; i < width; ++i) sum += exp_for<T>(x.v[i] - higher);
    most = higher;
  }
  __device__ __forceinline__ void add(const RunningSum& other) {
    const float higher = fmaxf(most, other.most);
    sum = sum * expf(most - higher) + other.sum * expf(other.most - higher);
    most = higher;
  }
  __device__ __forceinline__ float log() const {
    return most + logf(sum);
  }
};

template <class T>
struct LossRows {
  float* losses;
  Rows<T> logits;
  const std::int32_t* targets;
  int cols;
  bool gradient;
  float scale, cap;          // of the gradient, and 1 / softcap or 0
  const float* row_factors;  // null: 1

  __device__ __forceinline__ float scale_of(std::int64_t row) const {
    return row_factors == nullptr ? scale : scale * row_factors[row];
  }
};

/// Rows in one part of the vocabulary.
template <class T>
struct PartRows {
  float* part;  // (M, 3)
  Rows<const T> logits;
  const std::int32_t* targets;
  int cols;
  std::int64_t vocab_start;
};

/// Returns sum(exp(row)) in every thread.
template <int width, class T>
__device__ __forceinline__ RunningSum sum_exp(const T* row, int cols) {
  auto* shared = dynamic_shared_memory<float>();
  RunningSum mine;
  const int whole = cols / width * width;
  const int step = blockDim.x * width;
  int col = threadIdx.x * width;
  for (; col + step < whole; col += 2 * step) {
    const auto a = load<width>(row + col);
    const auto b = load<width>(row + col + step);
    mine.add<T>(a);
    mine.add<T>(b);
  }
  if (col < whole) mine.add<T>(load<width>(row + col));
  for (int c = whole + threadIdx.x; c < cols; c += blockDim.x) mine.add<T>(load<1>(row + c));
  const float most = block_max(mine.most, shared);
  const float total = block_sum(mine.sum * exp_for<T>(mine.most - most), shared + 32);
  return {most, total};
}

/// row = scale * (softmax(row) - 1 at the target, if the target is among the columns), times
/// softcap()'s slope.
template <int width, class T>
__device__ __forceinline__ void overwrite_by_gradient(T* row, int target, float normalizer,
                                                      const LossRows<T>& a) {
  const int cols = a.cols, whole = cols / width * width;
  const float scale = a.scale_of(blockIdx.x);
  const auto gradient = [&](float x, int col) {
    const float one = col == target ? 1.0F : 0.0F;
    const float slope = a.cap > 0 ? 1.0F - x * a.cap * (x * a.cap) : 1.0F;  // x may be infinite
    return (exp_for<T>(x - normalizer) - one) * scale * slope;
  };
  for (int col = threadIdx.x * width; col < whole; col += blockDim.x * width) {
    auto x = load<width>(row + col);
#pragma unroll
    for (int i = 0; i < width; ++i) x.v[i] = gradient(x.v[i], col + i);
    store<width>(row + col, x);
  }
  for (int c = whole + threadIdx.x; c < cols; c += blockDim.x)
    store_one(row + c, gradient(load_one(row + c), c));
}

/// Writes the gradient for an ignored row: zeros.
template <int width, class T>
__device__ __forceinline__ void overwrite_by_zeros(T* row, int cols) {
  const int whole = cols / width * width;
  for (int col = threadIdx.x * width; col < whole; col += blockDim.x * width)
    store<width>(row + col, Pack<width>{});
  for (int c = whole + threadIdx.x; c < cols; c += blockDim.x) store_one(row + c, 0.0F);
}

/// One row per block.
template <int width, class T>
__global__ void __launch_bounds__(max_threads) loss_rows(LossRows<T> a) {
  T* row = a.logits[blockIdx.x];
  const int target = a.targets[blockIdx.x];
  if (!(target < a.cols)) __trap();
  if (target < 0) {
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
    if (a.gradient) overwrite_by_zeros<width>(row, a.cols);
    return;
  }
  const float at_target = load_one(row + target);  // before the barriers: it is overwritten after
                                                   // them
  const float normalizer = sum_exp<width>(row, a.cols).log();
  if (threadIdx.x == 0) a.losses[blockIdx.x] = normalizer - at_target;
  if (a.gradient) overwrite_by_gradient<width>(row, target, normalizer, a);
}

/// Returns a target's column, or -1 if another part holds it.
__device__ __forceinline__ int column_of(std::int32_t target, std::int64_t vocab_start, int cols) {
  const std::int64_t own = target - vocab_start;
  return 0 <= own && own < cols ? static_cast<int>(own) : -1;
}

/// One row per block.
template <int width, class T>
__global__ void __launch_bounds__(max_threads) part_rows(PartRows<T> a) {
  const T* row = a.logits[blockIdx.x];
  float* to = a.part + 3 * static_cast<std::int64_t>(blockIdx.x);
  const int target = a.targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x < 3) to[threadIdx.x] = 0;
    return;
  }
  const auto sum = sum_exp<width>(row, a.cols);
  if (threadIdx.x > 0) return;
  const int own = column_of(target, a.vocab_start, a.cols);
  to[0] = sum.most;
  to[1] = sum.sum;
  to[2] = own < 0 ? 0.0F : load_one(row + own);
}

/// One row per block. All threads merge the parts (t, M, 3), in order.
template <int width, class T>
__global__ void __launch_bounds__(max_threads)
    losses_from_parts(LossRows<T> a, const float* parts, int t, std::int64_t vocab_start) {
  T* row = a.logits[blockIdx.x];
  const int target = a.targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
    if (a.gradient) overwrite_by_zeros<width>(row, a.cols);
    return;
  }
  RunningSum sum;
  float at_target = 0;
  for (int p = 0; p < t; ++p) {
    const float* part = parts + 3 * (static_cast<std::int64_t>(p) * gridDim.x + blockIdx.x);
    sum.add(RunningSum{part[0], part[1]});
    at_target += part[2];
  }
  const float normalizer = sum.log();
  if (threadIdx.x == 0) a.losses[blockIdx.x] = normalizer - at_target;
  if (a.gradient)
    overwrite_by_gradient<width>(row, column_of(target, vocab_start, a.cols), normalizer, a);
}

/// Returns the threads for a row with `cols` columns, `width` columns per thread and iteration.
std::int64_t threads_of(std::int64_t cols, std::int64_t width) {
  const auto wanted = divide_up(divide_up(cols, width), 32) * 32;
  return wanted < max_threads ? wanted : max_threads;
}

template <class T>
LossRows<T> loss_rows_of(const CrossEntropyCall& c) {
  return {c.losses.as<float>(),
          rows_of<T>(c.logits),
          c.targets.as<std::int32_t>(),
          static_cast<int>(c.logits.cols()),
          c.gradient == WithGradient::yes,
          c.scale,
          c.softcap > 0 ? 1.0F / c.softcap : 0.0F,
          c.row_factors ? c.row_factors.as<float>() : nullptr};
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyCall& call) {
  const Tensor& logits = call.logits;
  expects(call.losses.numel() == logits.rows() && call.targets.numel() == logits.rows(),
          "cross_entropy shapes");
  if (logits.numel() == 0) return;
  with_type(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto rows = loss_rows_of<T>(call);
    with_width<per_16_bytes<T>>(aligned(logits),
                                [&]<int width>(std::integral_constant<int, width>) {
                                  launch(&loss_rows<width, T>, {logits.rows()},
                                         threads_of(logits.cols(), width), 64 * 4, stream, rows);
                                });
  });
}

void cross_entropy_part(Stream& stream, Tensor part, Tensor logits, Tensor targets,
                        std::int64_t vocab_start) {
  expects(part.rows() == logits.rows() && part.cols() == 3 && part.dense() &&
              targets.numel() == logits.rows(),
          "cross_entropy_part shapes");
  if (logits.numel() == 0) return;
  with_type(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    const PartRows<T> rows{part.as<float>(), rows_of<const T>(logits), targets.as<std::int32_t>(),
                           static_cast<int>(logits.cols()), vocab_start};
    with_width<per_16_bytes<T>>(aligned(logits),
                                [&]<int width>(std::integral_constant<int, width>) {
                                  launch(&part_rows<width, T>, {logits.rows()},
                                         threads_of(logits.cols(), width), 64 * 4, stream, rows);
                                });
  });
}

void cross_entropy_from_parts(Stream& stream, const CrossEntropyCall& call, Tensor parts,
                              std::int64_t vocab_start) {
  const Tensor& logits = call.logits;
  const auto count = logits.rows();
  if (count == 0) return;
  const auto t = parts.rows() / count;
  expects(call.losses.numel() == count && call.targets.numel() == count &&
              parts.rows() == t * count && parts.cols() == 3 && parts.dense() && t > 0,
          "cross_entropy_from_parts: {} rows of parts of {} tokens", parts.rows(), count);
  with_type(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto rows = loss_rows_of<T>(call);
    with_width<per_16_bytes<T>>(
        aligned(logits), [&]<int width>(std::integral_constant<int, width>) {
          launch(&losses_from_parts<width, T>, {count},
                 rows.gradient ? threads_of(logits.cols(), width) : 32, 0, stream, rows,
                 static_cast<const float*>(parts.as<float>()), static_cast<int>(t), vocab_start);
        });
  });
}

}  // namespace LLAMESH_OPS_CUDA
