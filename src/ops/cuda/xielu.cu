#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: forward reads and writes F elements per token, backward reads 2 F and writes F,
// plus F if it recomputes the forward result.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;
constexpr int max_row_blocks = 512;  // another kernel adds up their sums
constexpr float half = 0.5F;         // beta in the paper
constexpr float highest = -1e-6F;    // below 0, so that exp(x) - 1 keeps digits

__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)));
}

/// f(x) = p of_p + n of_n + x / 2.
struct Xielu {
  float p, n;

  template <class T>
  static __device__ __forceinline__ Xielu from(const T* alpha_p, const T* alpha_n) {
    return {softplus(load_one(alpha_p)), half + softplus(load_one(alpha_n))};
  }
  struct Factors {
    float of_p, of_n;
    float slope;  ///< f'(x)
  };
  __device__ __forceinline__ Factors at(float x) const {
    if (x > 0) return {x * x, 0.0F, half + 2.0F * p * x};
    const float below = expm1f(fminf(x, highest));
    // fminf() of NaN is a number, but below - x is NaN.
    return {0.0F, below - x, half + n * (x < highest ? below : -1.0F)};
  }
  __device__ __forceinline__ float value(float x, const Factors& f) const {
    return p * f.of_p + n * f.of_n + half * x;
  }
};

/// Columns along grid x, rows along grid y.
template <int width, class T>
__global__ void __launch_bounds__(threads) forward(Rows<T> out, Rows<const T> x, const T* alpha_p,
                                                   const T* alpha_n, std::int64_t rows, int cols) {
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * width;
  if (col >= cols) return;
  const auto f = Xielu::from(alpha_p, alpha_n);
  for (std::int64_t m = blockIdx.y; m < rows; m += gridDim.y) {
    auto values = load<width>(x[m] + col);
#pragma unroll
    for (int i = 0; i < width; ++i) values.v[i] = f.value(values.v[i], f.at(values.v[i]));
    store<width>(out[m] + col, values);
  }
}

template <class T>
struct BackwardCall {
  Rows<T> dx, out;
  Rows<const T> dout, x;
  const T *alpha_p, *alpha_n;
  float* sums;  ///< (2, blocks)
  std::int64_t rows;
  int cols;
};

/// Likewise. Each block writes its sums for p and for n.
template <int width, class T>
__global__ void __launch_bounds__(threads) backward(BackwardCall<T> a) {
  auto* const shared = dynamic_shared_memory<float>();
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * width;
  const auto f = Xielu::from(a.alpha_p, a.alpha_n);
  float sum_p = 0, sum_n = 0;
  for (std::int64_t m = blockIdx.y; m < a.rows && col < a.cols; m += gridDim.y) {
    auto values = load<width>(a.x[m] + col);
    const auto d = load<width>(a.dout[m] + col);
    auto again = values;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float x = values.v[i];
      const auto factors = f.at(x);
      sum_p += d.v[i] * factors.of_p;
      sum_n += d.v[i] * factors.of_n;
      again.v[i] = f.value(x, factors);
      values.v[i] = d.v[i] * factors.slope;
    }
    store<width>(a.dx[m] + col, values);
    if (a.out.data != nullptr) store<width>(a.out[m] + col, again);
  }
  sum_p = block_sum(sum_p, shared);
  __syncthreads();
  sum_n = block_sum(sum_n, shared);
  if (threadIdx.x != 0) return;
  const auto blocks = static_cast<std::int64_t>(gridDim.x) * gridDim.y;
  const auto block = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  a.sums[block] = sum_p;
  a.sums[blocks + block] = sum_n;
}

/// One block: d_alpha = or += the blocks' sums times the slope of softplus(alpha).
template <class T, class D>
__global__ void __launch_bounds__(threads)
    finish(D* d_alpha, const T* alpha, const float* sums, std::int64_t blocks, bool accumulate) {
  float total = 0;
  for (std::int64_t b = threadIdx.x; b < blocks; b += threads) total += sums[b];
  total = block_sum(total, dynamic_shared_memory<float>());
  if (threadIdx.x != 0) return;
  const float before = accumulate ? load_one(d_alpha) : 0.0F;
  store_one(d_alpha, before + total / (1.0F + expf(-load_one(alpha))));
}

void check(const XieluCall& c) {
  expects(c.alpha_p.numel() == 1 && c.alpha_n.numel() == 1 && c.alpha_p.dtype() == c.x.dtype() &&
              c.alpha_n.dtype() == c.x.dtype() && (!c.out || same_matrix_shape(c.out, c.x)),
          "xielu shapes");
}

/// Calls body<width, T>().
template <class Body>
void with_rows(const XieluCall& c, bool is_aligned, const Body& body) {
  with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    with_width<wide>(c.x.cols() % wide == 0 && is_aligned,
                     [&]<int width>(std::integral_constant<int, width>) {
                       body.template operator()<width, T>();
                     });
  });
}

template <class T>
void write_gradient(Stream& stream, const Tensor& d_alpha, Accumulate accumulate, const T* alpha,
                    const float* sums, std::int64_t blocks) {
  if (!d_alpha) return;
  with_type(d_alpha.dtype(), [&]<class D>(std::type_identity<D>) {
    launch(&finish<T, D>, {1}, threads, warps * 4, stream, d_alpha.as<D>(), alpha, sums, blocks,
           accumulate == Accumulate::yes);
  });
}

}  // namespace

void xielu(Stream& stream, const XieluCall& c) {
  check(c);
  const auto rows = c.x.rows(), cols = c.x.cols();
  if (c.x.numel() == 0) return;
  with_rows(c, aligned(c.out, c.x), [&]<int width, class T>() {
    const Grid grid{divide_up(cols, threads * width), rows < 65535 ? rows : 65535};
    launch(&forward<width, T>, grid, threads, 0, stream, rows_of<T>(c.out), rows_of<const T>(c.x),
           c.alpha_p.as<T>(), c.alpha_n.as<T>(), rows, static_cast<int>(cols));
  });
}

void xielu_backward(Stream& stream, const XieluCall& c, const XieluGradients& g) {
  check(c);
  expects(same_matrix_shape(g.dout, c.x) && same_matrix_shape(g.dx, c.x) &&
              (!g.d_alpha_p || g.d_alpha_p.numel() == 1) &&
              (!g.d_alpha_n || g.d_alpha_n.numel() == 1),
          "xielu_backward shapes");
  const auto rows = c.x.rows(), cols = c.x.cols();
  with_rows(c, aligned(g.dx, c.out, g.dout, c.x), [&]<int width, class T>() {
    const std::int64_t row_blocks = rows < max_row_blocks ? rows : max_row_blocks;
    const Grid grid{divide_up(cols, threads * width), row_blocks};
    const std::int64_t blocks = divide_up(cols, threads * width) * row_blocks;
    const Scratch scratch(stream, 2 * blocks * 4);
    auto* const sums = scratch.as<float>();
    const T *alpha_p = c.alpha_p.as<T>(), *alpha_n = c.alpha_n.as<T>();
    launch(&backward<width, T>, grid, threads, warps * 4, stream,
           BackwardCall<T>{rows_of<T>(g.dx), rows_of<T>(c.out), rows_of<const T>(g.dout),
                           rows_of<const T>(c.x), alpha_p, alpha_n, sums, rows,
                           static_cast<int>(cols)});
    write_gradient(stream, g.d_alpha_p, g.accumulate_p, alpha_p, sums, blocks);
    write_gradient(stream, g.d_alpha_n, g.accumulate_n, alpha_n, sums + blocks, blocks);
  });
}

}  // namespace LLAMESH_OPS_CUDA
