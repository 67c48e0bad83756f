#include <algorithm>

#include "ops/adamw_factors.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/stochastic_rounding.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound, in one pass: per parameter AdamW reads 16 bytes and writes 12 (with moments in bf16
// 12 and 8), SGD reads 12 and writes 8; the bf16 copy adds 2.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr std::int64_t threads = 256;

struct Adamw {
  AdamwFactors factors;

  __device__ __forceinline__ void operator()(float& p, float& m, float& v, float g) const {
    const float slope = g * factors.gradient_scale;
    m += (slope - m) * factors.one_minus_beta1;
    v = v * factors.beta2 + slope * slope * factors.one_minus_beta2;
    p = p * factors.kept -
        factors.step_size * m / (sqrtf(v) * factors.root_correction + factors.eps);
  }
};

/// Blocks that fit on a multiprocessor with 39 registers per thread. More would be a second wave.
constexpr std::int64_t adamw_blocks = 6;

template <int width, class Moment>
__global__ void __launch_bounds__(threads, adamw_blocks)
    adamw_step(float* p, Moment* m, Moment* v, const float* g, bf16* copy, std::int64_t count,
               Adamw step, RoundingBits bits) {
  Rounder rounder(bits);
  const auto stride = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto i = first; i < packs; i += stride) {
    auto a = load<width>(p + i * width);
    auto b = load<width>(m + i * width);
    auto c = load<width>(v + i * width);
    const auto d = load<width>(g + i * width);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      step(a.v[j], b.v[j], c.v[j], d.v[j]);
      rounder.template round<Moment>(b.v[j], c.v[j], i * width + j);
    }
    store<width>(p + i * width, a);
    store<width>(m + i * width, b);
    store<width>(v + i * width, c);
    if (copy) store<width>(copy + i * width, a);
  }
  for (auto t = packs * width + first; t < count; t += stride) {
    float mean = load_one(m + t), square = load_one(v + t);
    step(p[t], mean, square, g[t]);
    rounder.template round<Moment>(mean, square, t);
    store_one(m + t, mean);
    store_one(v + t, square);
    if (copy) store_one(copy + t, p[t]);
  }
}

struct Sgd {
  float lr, momentum, weight_decay, gradient_scale;

  __device__ __forceinline__ void operator()(float& p, float& b, float g) const {
    b = b * momentum + (g * gradient_scale + p * weight_decay);
    p -= b * lr;
  }
};

template <int width>
__global__ void __launch_bounds__(threads)
    sgd_step(float* p, float* b, const float* g, bf16* copy, std::int64_t count, Sgd step) {
  const auto stride = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto i = first; i < packs; i += stride) {
    auto a = load<width>(p + i * width);
    auto c = load<width>(b + i * width);
    const auto d = load<width>(g + i * width);
#pragma unroll
    for (int j = 0; j < width; ++j) step(a.v[j], c.v[j], d.v[j]);
    store<width>(p + i * width, a);
    store<width>(b + i * width, c);
    if (copy) store<width>(copy + i * width, a);
  }
  for (auto t = packs * width + first; t < count; t += stride) {
    step(p[t], b[t], g[t]);
    if (copy) store_one(copy + t, p[t]);
  }
}

template <int width>
__global__ void __launch_bounds__(threads)
    scaled_difference_all(float* y, const float* a, const float* b, float factor,
                          std::int64_t count) {
  const auto stride = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto i = first; i < packs; i += stride) {
    auto from = load<width>(a + i * width);
    const auto less = load<width>(b + i * width);
#pragma unroll
    for (int j = 0; j < width; ++j) from.v[j] = (from.v[j] - less.v[j]) * factor;
    store<width>(y + i * width, from);
  }
  for (auto t = packs * width + first; t < count; t += stride) y[t] = (a[t] - b[t]) * factor;
}

struct Outer {
  float lr, momentum, local_share;

  __device__ __forceinline__ void operator()(float& w, float* b, float d, float& p) const {
    float slope = d;
    if (b) {
      *b = *b * momentum + slope;
      slope += *b * momentum;
    }
    w -= slope * lr;
    p = w + (p - w) * local_share;
  }
};

template <int width>
__global__ void __launch_bounds__(threads)
    outer_step_all(float* w, float* b, const float* d, float* p, bf16* copy, std::int64_t count,
                   Outer step) {
  const auto stride = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto i = first; i < packs; i += stride) {
    auto outer = load<width>(w + i * width);
    auto parameter = load<width>(p + i * width);
    const auto difference = load<width>(d + i * width);
    auto momentum = b ? load<width>(b + i * width) : outer;
#pragma unroll
    for (int j = 0; j < width; ++j)
      step(outer.v[j], b ? &momentum.v[j] : nullptr, difference.v[j], parameter.v[j]);
    store<width>(w + i * width, outer);
    if (b) store<width>(b + i * width, momentum);
    store<width>(p + i * width, parameter);
    if (copy) store<width>(copy + i * width, parameter);
  }
  for (auto t = packs * width + first; t < count; t += stride) {
    step(w[t], b ? b + t : nullptr, d[t], p[t]);
    if (copy) store_one(copy + t, p[t]);
  }
}

struct Momentum {
  float beta, gradient_scale;
  bool nesterov;

  /// Returns the update.
  __device__ __forceinline__ float operator()(float& m, float g) const {
    const float slope = g * gradient_scale;
    m += (slope - m) * (1.0F - beta);
    return nesterov ? slope + (m - slope) * beta : m;
  }
};

template <int width, class Moment>
__global__ void __launch_bounds__(threads)
    momentum_step(float* u, Moment* m, const float* g, std::int64_t count, Momentum step,
                  RoundingBits bits) {
  Rounder rounder(bits);
  const auto stride = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  float unused = 0;
  for (auto i = first; i < packs; i += stride) {
    auto a = load<width>(m + i * width);
    auto b = load<width>(g + i * width);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      b.v[j] = step(a.v[j], b.v[j]);
      rounder.template round<Moment>(a.v[j], unused, i * width + j);
    }
    store<width>(m + i * width, a);
    store<width>(u + i * width, b);
  }
  for (auto t = packs * width + first; t < count; t += stride) {
    float mean = load_one(m + t);
    u[t] = step(mean, g[t]);
    rounder.template round<Moment>(mean, unused, t);
    store_one(m + t, mean);
  }
}

__global__ void __launch_bounds__(threads)
    quadratic(float* y, const float* x, std::int64_t k, float a, float b, float c) {
  const auto stride = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto i = first; i < k * k; i += stride) {
    const auto row = i / k, col = i % k;
    if (col > row) continue;
    const float value = b * x[i] + c * y[i] + (row == col ? a : 0.0F);
    y[i] = value;
    y[col * k + row] = value;
  }
}

/// Returns null if no copy is requested.
bf16* copy_of(const Tensor& copy, std::int64_t count) {
  if (!copy) return nullptr;
  expects(copy.numel() == count, "a copy of {} elements in {}", count, copy.numel());
  return copy.span<bf16>().data();
}

}  // namespace

void adamw(Stream& stream, const AdamwCall& c, const AdamwStep& step) {
  const auto count = c.parameter.numel();
  expects(
      c.exp_avg.numel() == count && c.exp_avg_sq.numel() == count && c.gradient.numel() == count,
      "adamw on tensors of {}, {}, {} and {} elements", count, c.exp_avg.numel(),
      c.exp_avg_sq.numel(), c.gradient.numel());
  auto* const copy = copy_of(c.copy, count);
  if (count == 0) return;
  const Adamw kernel{factors_of(step)};
  const bool wide = aligned(c.parameter, c.exp_avg, c.exp_avg_sq, c.gradient, c.copy);
  with_type(c.exp_avg.dtype(), [&]<class Moment>(std::type_identity<Moment>) {
    with_width<4>(wide, [&]<int width>(std::integral_constant<int, width>) {
      const auto blocks =
          std::min(blocks_for(divide_up(count, width), threads), adamw_blocks * multiprocessors());
      launch(&adamw_step<width, Moment>, {blocks}, threads, 0, stream,
             c.parameter.span<float>().data(), c.exp_avg.span<Moment>().data(),
             c.exp_avg_sq.span<Moment>().data(),
             static_cast<const float*>(c.gradient.span<float>().data()), copy, count, kernel,
             c.rounding);
    });
  });
}

void sgd(Stream& stream, const SgdCall& c, const SgdStep& step) {
  const auto count = c.parameter.numel();
  expects(c.momentum_buffer.numel() == count && c.gradient.numel() == count,
          "sgd on tensors of {}, {} and {} elements", count, c.momentum_buffer.numel(),
          c.gradient.numel());
  auto* const copy = copy_of(c.copy, count);
  if (count == 0) return;
  const Sgd kernel{step.lr, step.momentum, step.weight_decay, step.gradient_scale};
  const bool wide = aligned(c.parameter, c.momentum_buffer, c.gradient, c.copy);
  with_width<4>(wide, [&]<int width>(std::integral_constant<int, width>) {
    launch(&sgd_step<width>, {blocks_for(divide_up(count, width), threads)}, threads, 0, stream,
           c.parameter.span<float>().data(), c.momentum_buffer.span<float>().data(),
           static_cast<const float*>(c.gradient.span<float>().data()), copy, count, kernel);
  });
}

void scaled_difference(Stream& stream, Tensor y, Tensor a, Tensor b, float factor) {
  const auto count = y.numel();
  expects(a.numel() == count && b.numel() == count, "{} - {} elements into {}", a.numel(),
          b.numel(), count);
  if (count == 0) return;
  with_width<4>(aligned(y, a, b), [&]<int width>(std::integral_constant<int, width>) {
    launch(&scaled_difference_all<width>, {blocks_for(divide_up(count, width), threads)}, threads,
           0, stream, y.span<float>().data(), static_cast<const float*>(a.span<float>().data()),
           static_cast<const float*>(b.span<float>().data()), factor, count);
  });
}

void outer_step(Stream& stream, const OuterCall& c, const OuterStep& step) {
  const auto count = c.outer.numel();
  expects(c.difference.numel() == count && c.parameter.numel() == count &&
              (!c.momentum || c.momentum.numel() == count),
          "outer_step on tensors of {}, {} and {} elements", count, c.difference.numel(),
          c.parameter.numel());
  auto* const copy = copy_of(c.copy, count);
  if (count == 0) return;
  auto* const momentum = c.momentum ? c.momentum.span<float>().data() : nullptr;
  const Outer kernel{step.lr, step.momentum, step.local_share};
  const bool wide = aligned(c.outer, c.momentum, c.difference, c.parameter, c.copy);
  with_width<4>(wide, [&]<int width>(std::integral_constant<int, width>) {
    launch(&outer_step_all<width>, {blocks_for(divide_up(count, width), threads)}, threads, 0,
           stream, c.outer.span<float>().data(), momentum,
           static_cast<const float*>(c.difference.span<float>().data()),
           c.parameter.span<float>().data(), copy, count, kernel);
  });
}

void muon_momentum(Stream& stream, const MuonMomentumCall& c, const MuonMomentumStep& step) {
  const auto count = c.update.numel();
  expects(c.momentum.numel() == count && c.gradient.numel() == count,
          "muon_momentum on tensors of {}, {} and {} elements", count, c.momentum.numel(),
          c.gradient.numel());
  if (count == 0) return;
  const Momentum kernel{step.beta, step.gradient_scale, step.nesterov};
  with_type(c.momentum.dtype(), [&]<class Moment>(std::type_identity<Moment>) {
    with_width<4>(aligned(c.update, c.momentum, c.gradient),
                  [&]<int width>(std::integral_constant<int, width>) {
                    launch(&momentum_step<width, Moment>,
                           {blocks_for(divide_up(count, width), threads)}, threads, 0, stream,
                           c.update.span<float>().data(), c.momentum.span<Moment>().data(),
                           static_cast<const float*>(c.gradient.span<float>().data()), count,
                           kernel, c.rounding);
                  });
  });
}

void matrix_quadratic(Stream& stream, Tensor squared, Tensor x, float a, float b, float c) {
  const auto k = x.rows();
  expects(x.cols() == k && squared.rows() == k && squared.cols() == k,
          "matrix_quadratic of ({}, {}) and ({}, {})", squared.rows(), squared.cols(), k, x.cols());
  if (k == 0) return;
  launch(&quadratic, {blocks_for(k * k, threads)}, threads, 0, stream, squared.span<float>().data(),
         static_cast<const float*>(x.span<float>().data()), k, a, b, c);
}

}  // namespace LLAMESH_OPS_CUDA
