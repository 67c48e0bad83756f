#include "ops/cuda/kernels.hpp"
#include "ops/cuda/packs.cuh"
#include "ops/cuda/reduce.cuh"

// Bound by memory: the loss reads V numbers a token, the gradient reads them once more and writes
// them: 6 bytes a logit in bf16. A row is longer than shared memory, so it is read twice.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int most_threads = 512;
constexpr float lowest = -3.0e38F;  // finite, so that no difference of two such is a NaN

/// The logarithm of a sum of exponentials, as sum * exp(most).
struct RunningSum {
  float most = lowest;
  float sum = 0;

  template <class T, int width>
  __device__ __forceinline__ void add(const Pack<width>& x) {
    float higher = most;
    LLAMESH_UNROLL
    for (int i = 0; i < width; ++i) higher = most_of(higher, x.v[i]);
    sum *= exp_for<T>(most - higher);
    LLAMESH_UNROLL
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
  auto* shared = shared_memory<float>();
  RunningSum mine;
  const int whole = cols / width * width;
  const int step = threads_x() * width;
  int col = thread_x() * width;
  for (; col + step < whole; col += 2 * step) {
    const auto a = load<width>(row + col);
    const auto b = load<width>(row + col + step);
    mine.add<T>(a);
    mine.add<T>(b);
  }
  if (col < whole) mine.add<T>(load<width>(row + col));
  for (int c = whole + thread_x(); c < cols; c += threads_x()) mine.add<T>(load<1>(row + c));
  const float most = block_max(mine.most, shared);
  const float total = block_sum(mine.sum * exp_for<T>(mine.most - most), shared + 32);
  return most + log_of(total);
}

/// row = scale * (softmax(row) - 1 at the target).
template <int width, class T>
__device__ __forceinline__ void overwrite_by_gradient(T* row, int cols, int target,
                                                      float normalizer, float scale) {
  const int whole = cols / width * width;
  for (int col = thread_x() * width; col < whole; col += threads_x() * width) {
    auto x = load<width>(row + col);
    LLAMESH_UNROLL
    for (int i = 0; i < width; ++i) {
      const float one = col + i == target ? 1.0F : 0.0F;
      x.v[i] = (exp_for<T>(x.v[i] - normalizer) - one) * scale;
    }
    store<width>(row + col, x);
  }
  for (int c = whole + thread_x(); c < cols; c += threads_x()) {
    const float one = c == target ? 1.0F : 0.0F;
    store_one(row + c, (exp_for<T>(load_one(row + c) - normalizer) - one) * scale);
  }
}

/// One row a block.
template <int width, class T>
__global__ void __launch_bounds__(most_threads) loss_rows(LossRows<T> a) {
  T* row = a.logits[block_x()];
  const int target = a.targets[block_x()];
  require(target < a.cols);
  if (target < 0) {
    if (thread_x() == 0) a.losses[block_x()] = 0;
    if (!a.gradient) return;
    const int whole = a.cols / width * width;
    for (int col = thread_x() * width; col < whole; col += threads_x() * width)
      store<width>(row + col, Pack<width>{});
    for (int c = whole + thread_x(); c < a.cols; c += threads_x()) store_one(row + c, 0.0F);
    return;
  }
  const float at_target = load_one(row + target);  // before the barriers, after which it changes
  const float normalizer = log_sum_exp<width>(row, a.cols);
  if (thread_x() == 0) a.losses[block_x()] = normalizer - at_target;
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
          launch(&loss_rows<width, T>, {logits.rows()},
                 wanted < most_threads ? wanted : most_threads, 64 * 4, stream, a);
        });
  });
}

}  // namespace LLAMESH_OPS_CUDA
