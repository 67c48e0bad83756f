#include "ops/cuda/fp8.cuh"
#include "ops/cuda/kernels.hpp"

// Memory-bound: with a gate, forward reads 2 F elements per token and writes F; backward reads 3 F
// and writes 2 F, plus F if it recomputes the forward result. bf16 uses the fast exponential and
// division: the exact ones would take as long as the memory traffic.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
/// For a block that keeps a row: 16-byte packs in each thread.
constexpr int kept_packs = 8;
constexpr int max_row_threads = 512;

template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  const float below = 1.0F + exp_for<T>(-x);
  if constexpr (std::is_same_v<T, float>)
    return 1.0F / below;
  else
    return __fdividef(1.0F, below);
}

// An activation f is described by w with f(x) = x w(x), and by f' from x and w(x). With a gate, it
// may limit gate and `up` first.

/// f and `up` as they are.
struct Unlimited {
  static constexpr bool limits = false;
};

struct Silu : Unlimited {
  template <class T>
  static __device__ __forceinline__ float weight(float x) {
    return sigmoid<T>(x);
  }
  /// Returns d f'(x).
  static __device__ __forceinline__ float times_slope(float d, float x, float w) {
    return d * w * (1.0F + x * (1.0F - w));
  }
};

/// Activation::clamped_swiglu: w(x) = sigmoid(1.702 x).
struct ClampedSilu {
  static constexpr bool limits = true;
  static constexpr float limit = 7.0F, slope = 1.702F;

  static __device__ __forceinline__ float limited_gate(float x) {
    return x > limit ? limit : x;  // NaN stays NaN
  }
  static __device__ __forceinline__ float limited_up(float x) {
    return 1.0F + (x < -limit ? -limit : limited_gate(x));
  }
  /// Returns d where the gate's or up's own value x counts, else 0.
  static __device__ __forceinline__ float gate_gradient(float d, float x) {
    return x > limit ? 0.0F : d;
  }
  static __device__ __forceinline__ float up_gradient(float d, float x) {
    return x < -limit ? 0.0F : gate_gradient(d, x);
  }

  template <class T>
  static __device__ __forceinline__ float weight(float x) {
    return sigmoid<T>(slope * x);
  }
  static __device__ __forceinline__ float times_slope(float d, float x, float w) {
    return d * w * (1.0F + slope * x * (1.0F - w));
  }
};

/// GELU's tanh form: w(x) = (1 + tanh(u)) / 2 = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715
/// x^3).
struct GeluTanh : Unlimited {
  static constexpr float cubic = 0.044715F;
  static constexpr float twice_sqrt_2_over_pi = 1.5957691216057308F;

  template <class T>
  static __device__ __forceinline__ float weight(float x) {
    return sigmoid<T>(twice_sqrt_2_over_pi * (x + cubic * x * x * x));
  }
  static __device__ __forceinline__ float times_slope(float d, float x, float w) {
    const float du = twice_sqrt_2_over_pi * (1.0F + 3.0F * cubic * x * x);
    return d * (w + x * w * (1.0F - w) * du);
  }
};

/// w(x) = max(x, 0).
struct SquaredRelu : Unlimited {
  template <class T>
  static __device__ __forceinline__ float weight(float x) {
    return x < 0.0F ? 0.0F : x;  // NaN stays NaN
  }
  static __device__ __forceinline__ float times_slope(float d, float /*x*/, float w) {
    return 2.0F * d * w;
  }
};

template <class F>
__device__ __forceinline__ float gate_of(float x) {
  if constexpr (F::limits)
    return F::limited_gate(x);
  else
    return x;
}
template <class F>
__device__ __forceinline__ float up_of(float x) {
  if constexpr (F::limits)
    return F::limited_up(x);
  else
    return x;
}

/// Returns f(x), or f(gate) * up.
template <class F, bool gated, class T, int width>
__device__ __forceinline__ Pack<width> activated(Pack<width> values, const Pack<width>& up) {
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const float v = gate_of<F>(values.v[i]), w = F::template weight<T>(v);
    values.v[i] = v * (gated ? w * up_of<F>(up.v[i]) : w);
  }
  return values;
}

/// Columns along grid x, rows along grid y.
template <class F, bool gated, int width, class T>
__global__ void __launch_bounds__(threads)
    forward(Rows<T> out, Rows<const T> x, std::int64_t rows, int cols) {
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * width;
  if (col >= cols) return;
  for (std::int64_t m = blockIdx.y; m < rows; m += gridDim.y) {
    const auto values = load<width>(x[m] + col);
    const auto up = gated ? load<width>(x[m] + cols + col) : Pack<width>{};
    store<width>(out[m] + col, activated<F, gated, T>(values, up));
  }
}

/// A block takes a row, which it keeps to quantize it.
template <class F, bool gated, class T>
__global__ void __launch_bounds__(max_row_threads)
    forward_in_fp8(Rows<T> out, Fp8Rows q, Rows<const T> x, int cols) {
  constexpr int width = per_16_bytes<T>;
  const std::int64_t row = blockIdx.x;
  Words4 kept[kept_packs];
#pragma unroll
  for (int p = 0; p < kept_packs; ++p) {
    const int col = static_cast<int>(p * blockDim.x + threadIdx.x) * width;
    if (col >= cols) continue;
    const auto values = load<width>(x[row] + col);
    const auto up = gated ? load<width>(x[row] + cols + col) : Pack<width>{};
    kept[p] = pack<T>(activated<F, gated, T>(values, up));
    store_words(out[row] + col, kept[p]);
  }
  quantize_kept<T>(q, kept, row, cols, dynamic_shared_memory<std::uint32_t>());
}

template <class F, bool gated, int width, class T>
__global__ void __launch_bounds__(threads) backward(Rows<T> dx, Rows<T> out, Rows<const T> dout,
                                                    Rows<const T> x, std::int64_t rows, int cols) {
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * width;
  if (col >= cols) return;
  for (std::int64_t m = blockIdx.y; m < rows; m += gridDim.y) {
    auto values = load<width>(x[m] + col);
    auto up = gated ? load<width>(x[m] + cols + col) : Pack<width>{};
    const auto d = load<width>(dout[m] + col);
    auto again = values;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float v = gate_of<F>(values.v[i]), w = F::template weight<T>(v);
      const float u = up_of<F>(up.v[i]);
      again.v[i] = gated ? v * (w * u) : v * w;
      float d_gate = F::times_slope(gated ? d.v[i] * u : d.v[i], v, w), d_up = d.v[i] * v * w;
      if constexpr (F::limits) {
        d_gate = F::gate_gradient(d_gate, values.v[i]);
        d_up = F::up_gradient(d_up, up.v[i]);
      }
      values.v[i] = d_gate;
      up.v[i] = d_up;
    }
    store<width>(dx[m] + col, values);
    if constexpr (gated) store<width>(dx[m] + cols + col, up);
    if (out.data != nullptr) store<width>(out[m] + col, again);
  }
}

template <int width>
Grid grid_of(std::int64_t rows, std::int64_t cols) {
  return {divide_up(cols, threads * width), rows < 65535 ? rows : 65535};
}

/// Calls body<F, gated, width, T>(), with rows of `cols` elements.
template <class Body>
void with_activation(Activation activation, DType dtype, std::int64_t cols, bool is_aligned,
                     const Body& body) {
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = cols % wide == 0 && is_aligned;
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      switch (activation) {
        case Activation::swiglu:
          return body.template operator()<Silu, true, width, T>();
        case Activation::clamped_swiglu:
          return body.template operator()<ClampedSilu, true, width, T>();
        case Activation::geglu:
          return body.template operator()<GeluTanh, true, width, T>();
        case Activation::gelu:
          return body.template operator()<GeluTanh, false, width, T>();
        case Activation::squared_relu:
          return body.template operator()<SquaredRelu, false, width, T>();
        case Activation::xielu:
          expects(false, "xIELU has coefficients; call xielu()");
      }
    });
  });
}

}  // namespace

void activate(Stream& stream, Tensor out, Tensor x, Activation activation) {
  const auto rows = out.rows(), cols = out.cols();
  expects(x.cols() == inputs_of(activation) * cols && x.rows() == rows, "activate shapes");
  if (out.numel() == 0) return;
  with_activation(activation, out.dtype(), cols, aligned(out, x),
                  [&]<class F, bool gated, int width, class T>() {
                    launch(&forward<F, gated, width, T>, grid_of<width>(rows, cols), threads, 0,
                           stream, rows_of<T>(out), rows_of<const T>(x), rows,
                           static_cast<int>(cols));
                  });
}

void activate_and_quantize(Stream& stream, Tensor out, const Fp8Matrix& q, Tensor x,
                           Activation activation) {
  expects(same_matrix_shape(q.values, out), "activate_and_quantize shapes");
  const auto rows = out.rows(), cols = out.cols();
  const auto row_threads =
      divide_up(cols * size_of(out.dtype()), std::int64_t{16} * kept_packs * 32) * 32;
  if (row_threads > max_row_threads || cols % 16 != 0 || !aligned(out, x, q.values)) {
    activate(stream, out, x, activation);
    return quantize_rows(stream, q, out);
  }
  expects(x.cols() == inputs_of(activation) * cols && x.rows() == rows, "activate shapes");
  if (out.numel() == 0) return;
  with_activation(
      activation, out.dtype(), cols, true, [&]<class F, bool gated, int width, class T>() {
        launch(&forward_in_fp8<F, gated, T>, {rows}, row_threads, row_threads / 8, stream,
               rows_of<T>(out), rows_of(q), rows_of<const T>(x), static_cast<int>(cols));
      });
}

void activate_backward(Stream& stream, Tensor dx, Tensor out, Tensor dout, Tensor x,
                       Activation activation) {
  const auto rows = dout.rows(), cols = dout.cols();
  expects(x.cols() == inputs_of(activation) * cols && x.rows() == rows &&
              same_matrix_shape(dx, x) && (!out || same_matrix_shape(out, dout)),
          "activate_backward shapes");
  if (dout.numel() == 0) return;
  with_activation(activation, dout.dtype(), cols, aligned(dx, out, dout, x),
                  [&]<class F, bool gated, int width, class T>() {
                    launch(&backward<F, gated, width, T>, grid_of<width>(rows, cols), threads, 0,
                           stream, rows_of<T>(dx), rows_of<T>(out), rows_of<const T>(dout),
                           rows_of<const T>(x), rows, static_cast<int>(cols));
                  });
}

}  // namespace LLAMESH_OPS_CUDA
