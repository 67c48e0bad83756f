#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

#include <algorithm>
#include <cmath>

// Memory-bound: forward reads and writes `out` once, backward reads out and dout once. A block has
// one head in neighboring rows, so its part of log_sum_exp is contiguous within a sequence.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;
constexpr int rows_scaled = 32;   // per block: 16 bytes per thread if a value has 64 dims in bf16
constexpr int rows_summed = 128;  // per block: more, because another kernel adds up the blocks

/// One head in the rows [first, first + count), as a block takes them.
struct RowsOfHead {
  std::int64_t first;
  int head, count;
};

template <class T>
struct Sinks {
  Rows<T> out;
  float* log_sum_exp;  ///< (B, H, T)
  const T* sinks;
  std::int64_t rows, sequence;
  int heads, value_dim;

  explicit Sinks(const AttentionSinks& c)
      : out(rows_of<T>(c.out)),
        log_sum_exp(c.log_sum_exp.as<float>()),
        sinks(c.sinks.as<T>()),
        rows(c.out.rows()),
        sequence(c.log_sum_exp.size(2)),
        heads(static_cast<int>(c.log_sum_exp.size(1))),
        value_dim(static_cast<int>(c.out.cols() / heads)) {}

  template <int max_rows>
  __device__ __forceinline__ RowsOfHead of_block() const {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * max_rows;
    const std::int64_t left = rows - first;
    return {first, static_cast<int>(blockIdx.y),
            static_cast<int>(left < max_rows ? left : max_rows)};
  }
  __device__ __forceinline__ float& log_sum_exp_at(std::int64_t row, int head) const {
    return log_sum_exp[(row / sequence * heads + head) * sequence + row % sequence];
  }
};

template <int width, class T>
__global__ void __launch_bounds__(threads) add_sinks(Sinks<T> a) {
  auto* const shares = dynamic_shared_memory<float>();
  const auto mine = a.template of_block<rows_scaled>();
  const int thread = threadIdx.x;
  if (thread < mine.count) {
    float& sum = a.log_sum_exp_at(mine.first + thread, mine.head);
    const float above = load_one(a.sinks + mine.head) - sum;  // the sink's score
    shares[thread] = 1.0F / (1.0F + expf(above));
    sum += fmaxf(above, 0.0F) + log1pf(expf(-fabsf(above)));
  }
  __syncthreads();
  const int packs = a.value_dim / width;
  for (int i = thread; i < mine.count * packs; i += threads) {
    const int row = i / packs;
    T* const at = a.out[mine.first + row] + mine.head * a.value_dim + i % packs * width;
    auto x = load<width>(at);
#pragma unroll
    for (int j = 0; j < width; ++j) x.v[j] *= shares[row];
    store<width>(at, x);
  }
}

/// Each block writes its sum of the sink's weight times dout . out to sums (H, blocks).
template <int width, class T>
__global__ void __launch_bounds__(threads)
    sum_products(Sinks<T> a, Rows<const T> dout, float* sums) {
  auto* const weights = dynamic_shared_memory<float>();
  const auto mine = a.template of_block<rows_summed>();
  const int thread = threadIdx.x;
  if (thread < mine.count)
    weights[thread] =
        expf(load_one(a.sinks + mine.head) - a.log_sum_exp_at(mine.first + thread, mine.head));
  __syncthreads();
  const int packs = a.value_dim / width;
  float total = 0;
  for (int i = thread; i < mine.count * packs; i += threads) {
    const int row = i / packs, col = mine.head * a.value_dim + i % packs * width;
    const auto x = load<width>(a.out[mine.first + row] + col);
    const auto d = load<width>(dout[mine.first + row] + col);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < width; ++j) dot += x.v[j] * d.v[j];
    total += weights[row] * dot;
  }
  total = block_sum(total, weights + rows_summed);
  if (thread == 0) sums[static_cast<std::int64_t>(mine.head) * gridDim.x + blockIdx.x] = total;
}

/// One head per block: dsinks = or += minus the sum over its blocks in sum_products().
template <class W>
__global__ void __launch_bounds__(threads)
    finish(W* dsinks, const float* sums, int blocks, bool accumulate) {
  const float* const mine = sums + static_cast<std::int64_t>(blockIdx.x) * blocks;
  float total = 0;
  for (int b = threadIdx.x; b < blocks; b += threads) total += mine[b];
  total = block_sum(total, dynamic_shared_memory<float>());
  if (threadIdx.x != 0) return;
  auto* const to = dsinks + blockIdx.x;
  store_one(to, (accumulate ? load_one(to) : 0.0F) - total);
}

void check(const AttentionSinks& c) {
  expects(c.log_sum_exp.dims() == 3 && c.log_sum_exp.dense() && c.sinks.numel() > 0 &&
              c.sinks.numel() == c.log_sum_exp.size(1) && c.sinks.dtype() == c.out.dtype() &&
              c.out.rows() == c.log_sum_exp.size(0) * c.log_sum_exp.size(2) &&
              c.out.cols() % c.sinks.numel() == 0,
          "attention_sinks shapes");
}

/// Calls body<width, T>().
template <class Body>
void with_heads(const AttentionSinks& c, bool is_aligned, const Body& body) {
  with_type(c.out.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = c.out.cols() / c.sinks.numel() % wide == 0 && is_aligned;
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      body.template operator()<width, T>();
    });
  });
}

}  // namespace

void attention_sinks(Stream& stream, const AttentionSinks& c) {
  check(c);
  if (c.out.numel() == 0) return;
  with_heads(c, aligned(c.out), [&]<int width, class T>() {
    launch(&add_sinks<width, T>, {divide_up(c.out.rows(), rows_scaled), c.sinks.numel()}, threads,
           rows_scaled * 4, stream, Sinks<T>(c));
  });
}

void attention_sinks_backward(Stream& stream, const AttentionSinks& c,
                              const AttentionSinksGradients& g) {
  check(c);
  expects(same_matrix_shape(c.out, g.dout) && g.dsinks.numel() == c.sinks.numel(),
          "attention_sinks_backward shapes");
  const auto heads = c.sinks.numel();
  const auto blocks = std::max<std::int64_t>(divide_up(c.out.rows(), rows_summed), 1);
  const Scratch scratch(stream, heads * blocks * 4);
  auto* const sums = scratch.as<float>();
  with_heads(c, aligned(c.out, g.dout), [&]<int width, class T>() {
    launch(&sum_products<width, T>, {blocks, heads}, threads, (rows_summed + warps) * 4, stream,
           Sinks<T>(c), rows_of<const T>(g.dout), sums);
  });
  with_type(g.dsinks.dtype(), [&]<class W>(std::type_identity<W>) {
    launch(&finish<W>, {heads}, threads, warps * 4, stream, g.dsinks.as<W>(),
           static_cast<const float*>(sums), static_cast<int>(blocks),
           g.accumulate == Accumulate::yes);
  });
}

}  // namespace LLAMESH_OPS_CUDA
