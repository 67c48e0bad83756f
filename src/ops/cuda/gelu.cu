#include "ops/cuda/kernels.hpp"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: per element, forward reads one and writes one; backward reads two and writes one,
// or two if it recomputes the forward result. bf16 uses the fast exponential and division, as in
// swiglu.cu.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr float cubic = 0.044715F;
constexpr float twice_sqrt_2_over_pi = 1.5957691216057308F;

/// (1 + tanh(u)) / 2 = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
__device__ __forceinline__ float weight(float x) {
  const float below = 1.0F + exp_for<T>(-twice_sqrt_2_over_pi * (x + cubic * x * x * x));
  if constexpr (std::is_same_v<T, float>)
    return 1.0F / below;
  else
    return __fdividef(1.0F, below);
}

template <int width, class T>
__global__ void __launch_bounds__(threads) forward(T* out, const T* x, std::int64_t packs) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (auto p = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; p < packs;
       p += stride) {
    auto values = load<width>(x + p * width);
#pragma unroll
    for (int i = 0; i < width; ++i) values.v[i] *= weight<T>(values.v[i]);
    store<width>(out + p * width, values);
  }
}

template <int width, class T>
__global__ void __launch_bounds__(threads)
    backward(T* dx, T* out, const T* dout, const T* x, std::int64_t packs) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (auto p = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; p < packs;
       p += stride) {
    auto values = load<width>(x + p * width);
    const auto d = load<width>(dout + p * width);
    auto again = values;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float v = values.v[i], s = weight<T>(v);
      again.v[i] = v * s;
      const float slope = twice_sqrt_2_over_pi * (1.0F + 3.0F * cubic * v * v);
      values.v[i] = d.v[i] * (s + v * s * (1.0F - s) * slope);
    }
    if (out != nullptr) store<width>(out + p * width, again);
    store<width>(dx + p * width, values);
  }
}

}  // namespace

void gelu(Stream& stream, Tensor out, Tensor x) {
  expects(same_matrix_shape(out, x) && out.dense() && x.dense(), "gelu shapes");
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = x.numel() % wide == 0 && aligned(out, x);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      const auto packs = x.numel() / width;
      launch(&forward<width, T>, {blocks_for(packs, threads)}, threads, 0, stream, out.as<T>(),
             static_cast<const T*>(x.as<T>()), packs);
    });
  });
}

void gelu_backward(Stream& stream, Tensor dx, Tensor out, Tensor dout, Tensor x) {
  expects(same_matrix_shape(dx, x) && same_matrix_shape(dout, x) &&
              (!out || (same_matrix_shape(out, x) && out.dense())) && dx.dense() && x.dense() &&
              dout.dense(),
          "gelu_backward shapes");
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = x.numel() % wide == 0 && aligned(dx, out, dout, x);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      const auto packs = x.numel() / width;
      launch(&backward<width, T>, {blocks_for(packs, threads)}, threads, 0, stream, dx.as<T>(),
             out ? out.as<T>() : nullptr, static_cast<const T*>(dout.as<T>()),
             static_cast<const T*>(x.as<T>()), packs);
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
