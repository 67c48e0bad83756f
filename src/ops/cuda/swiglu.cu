#include "ops/cuda/kernels.hpp"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: per token, forward reads 2 F elements and writes F; backward reads 3 F and writes 2
// F, plus F if it recomputes the forward result. bf16 uses the fast exponential and division: the
// exact ones would take as long as the memory traffic.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;

template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  const float below = 1.0F + exp_for<T>(-x);
  if constexpr (std::is_same_v<T, float>)
    return 1.0F / below;
  else
    return __fdividef(1.0F, below);
}

/// Columns along grid x, rows along grid y.
template <int width, class T>
__global__ void __launch_bounds__(threads)
    forward(Rows<T> out, Rows<const T> gate_up, std::int64_t rows, int cols) {
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * width;
  if (col >= cols) return;
  for (std::int64_t m = blockIdx.y; m < rows; m += gridDim.y) {
    auto gate = load<width>(gate_up[m] + col);
    const auto up = load<width>(gate_up[m] + cols + col);
#pragma unroll
    for (int i = 0; i < width; ++i) gate.v[i] *= sigmoid<T>(gate.v[i]) * up.v[i];
    store<width>(out[m] + col, gate);
  }
}

template <int width, class T>
__global__ void __launch_bounds__(threads)
    backward(Rows<T> dgate_up, Rows<T> out, Rows<const T> dout, Rows<const T> gate_up,
             std::int64_t rows, int cols) {
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * width;
  if (col >= cols) return;
  for (std::int64_t m = blockIdx.y; m < rows; m += gridDim.y) {
    auto gate = load<width>(gate_up[m] + col);
    auto up = load<width>(gate_up[m] + cols + col);
    const auto slope = load<width>(dout[m] + col);
    auto again = up;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float s = sigmoid<T>(gate.v[i]);
      again.v[i] = gate.v[i] * (s * up.v[i]);
      const float dgate = slope.v[i] * up.v[i] * s * (1.0F + gate.v[i] * (1.0F - s));
      up.v[i] = slope.v[i] * gate.v[i] * s;
      gate.v[i] = dgate;
    }
    store<width>(dgate_up[m] + col, gate);
    store<width>(dgate_up[m] + cols + col, up);
    if (out.data != nullptr) store<width>(out[m] + col, again);
  }
}

template <int width>
Grid grid_of(std::int64_t rows, std::int64_t cols) {
  return {divide_up(cols, threads * width), rows < 65535 ? rows : 65535};
}

}  // namespace

void swiglu(Stream& stream, Tensor out, Tensor gate_up) {
  const auto cols = out.cols();
  expects(gate_up.cols() == 2 * cols && gate_up.rows() == out.rows(), "swiglu shapes");
  if (out.numel() == 0) return;
  with_type(out.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = cols % wide == 0 && aligned(out, gate_up);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&forward<width, T>, grid_of<width>(out.rows(), cols), threads, 0, stream,
             rows_of<T>(out), rows_of<const T>(gate_up), out.rows(), static_cast<int>(cols));
    });
  });
}

void swiglu_backward(Stream& stream, Tensor dgate_up, Tensor out, Tensor dout, Tensor gate_up) {
  const auto cols = dout.cols();
  expects(gate_up.cols() == 2 * cols && gate_up.rows() == dout.rows() &&
              same_matrix_shape(dgate_up, gate_up) && (!out || same_matrix_shape(out, dout)),
          "swiglu_backward shapes");
  if (dout.numel() == 0) return;
  with_type(dout.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = cols % wide == 0 && aligned(dgate_up, out, dout, gate_up);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&backward<width, T>, grid_of<width>(dout.rows(), cols), threads, 0, stream,
             rows_of<T>(dgate_up), rows_of<T>(out), rows_of<const T>(dout),
             rows_of<const T>(gate_up), dout.rows(), static_cast<int>(cols));
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
