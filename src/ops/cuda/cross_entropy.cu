#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Bound by memory: the loss reads V elements a token, the gradient reads them once more and writes
// them: 6 bytes a logit in bf16. A row is longer than shared memory, so it is read twice.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int max_threads = 512;
constexpr float lowest = -3.0e38F;  // finite, so that no difference of two such is a NaN

/// The logarithm of a sum of exponentials, as sum * exp(most).
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
};

template <class T>
struct LossRows {
  float* losses;
  Rows<T> logits;
  const std::int32_t* targets;
  int cols;
  float scale;
  bool gradient;
};

/// log(sum(exp(row))), in every thread.
template <int width, class T>
__device__ __forceinline__ float log_sum_exp(const T* row, int cols) {
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
  return most + logf(total);
}

/// row = scale * (softmax(row) - 1 at the target).
template <int width, class T>
__device__ __forceinline__ void overwrite_by_gradient(T* row, int cols, int target,
                                                      float normalizer, float scale) {
  const int whole = cols / width * width;
  for (int col = threadIdx.x * width; col < whole; col += blockDim.x * width) {
    auto x = load<width>(row + col);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float one = col + i == target ? 1.0F : 0.0F;
      x.v[i] = (exp_for<T>(x.v[i] - normalizer) - one) * scale;
    }
    store<width>(row + col, x);
  }
  for (int c = whole + threadIdx.x; c < cols; c += blockDim.x) {
    const float one = c == target ? 1.0F : 0.0F;
    store_one(row + c, (exp_for<T>(load_one(row + c) - normalizer) - one) * scale);
  }
}

/// One row a block.
template <int width, class T>
__global__ void __launch_bounds__(max_threads) loss_rows(LossRows<T> a) {
  T* row = a.logits[blockIdx.x];
  const int target = a.targets[blockIdx.x];
  if (!(target < a.cols)) __trap();
  if (target < 0) {
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
    if (!a.gradient) return;
    const int whole = a.cols / width * width;
    for (int col = threadIdx.x * width; col < whole; col += blockDim.x * width)
      store<width>(row + col, Pack<width>{});
    for (int c = whole + threadIdx.x; c < a.cols; c += blockDim.x) store_one(row + c, 0.0F);
    return;
  }
  const float at_target = load_one(row + target);  // before the barriers, after which it changes
  const float normalizer = log_sum_exp<width>(row, a.cols);
  if (threadIdx.x == 0) a.losses[blockIdx.x] = normalizer - at_target;
  if (a.gradient) overwrite_by_gradient<width>(row, a.cols, target, normalizer, a.scale);
}

}  // namespace

void cross_entropy(Stream& stream, Tensor losses, Tensor logits, Tensor targets, float scale,
                   WithGradient gradient) {
  expects(losses.numel() == logits.rows() && targets.numel() == logits.rows(),
          "cross_entropy shapes");
  if (logits.numel() == 0) return;
  with_type(logits.dtype(), [&]<class T>(std::type_identity<T>) {
    const LossRows<T> a{losses.as<float>(),
                        rows_of<T>(logits),
                        targets.as<std::int32_t>(),
                        static_cast<int>(logits.cols()),
                        scale,
                        gradient == WithGradient::yes};
    with_width<per_16_bytes<T>>(
        aligned(logits), [&]<int width>(std::integral_constant<int, width>) {
          const auto wanted = divide_up(divide_up(logits.cols(), width), 32) * 32;
          launch(&loss_rows<width, T>, {logits.rows()}, wanted < max_threads ? wanted : max_threads,
                 64 * 4, stream, a);
        });
  });
}

}  // namespace LLAMESH_OPS_CUDA
