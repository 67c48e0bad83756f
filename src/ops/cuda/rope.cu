#include "ops/cuda/kernels.hpp"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: reads and writes x. A token's cosines and sines stay in L1 cache for all its heads.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;

template <class T>
struct Turned {
  Rows<T> x;
  Rows<const float> cos_sin;
  const std::int32_t* document_starts;  // null: none
  int heads, half;
  RowPositions positions;
  std::int64_t tokens;
  float sign;
};

/// One token per block and iteration; each thread rotates `width` pairs at a time.
template <int width, class T>
__global__ void __launch_bounds__(threads) rotate(Turned<T> a) {
  const int packs = a.half / width;
  for (std::int64_t m = blockIdx.x; m < a.tokens; m += gridDim.x) {
    const auto start = a.document_starts ? a.document_starts[m] : 0;
    const auto* cosines = a.cos_sin[a.positions[m % a.positions.tokens] - start];
    for (int i = threadIdx.x; i < a.heads * packs; i += blockDim.x) {
      const int offset = i % packs * width;
      auto* head = a.x[m] + static_cast<std::int64_t>(i / packs) * 2 * a.half + offset;
      auto x1 = load<width>(head);
      auto x2 = load<width>(head + a.half);
      const auto c = load<width>(cosines + offset);
      const auto s = load<width>(cosines + a.half + offset);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float first = x1.v[j] * c.v[j] - a.sign * x2.v[j] * s.v[j];
        x2.v[j] = x2.v[j] * c.v[j] + a.sign * x1.v[j] * s.v[j];
        x1.v[j] = first;
      }
      store<width>(head, x1);
      store<width>(head + a.half, x2);
    }
  }
}

}  // namespace

void rope(Stream& stream, Tensor x, Tensor cos_sin, Tensor document_starts,
          const RowPositions& positions, Rotation rotation) {
  const auto head_dim = cos_sin.cols();
  expects(head_dim % 2 == 0 && x.cols() % head_dim == 0, "rope: {} columns, heads of {}", x.cols(),
          head_dim);
  expects(positions[positions.tokens - 1] < cos_sin.rows(), "rope: position {}, the table has {}",
          positions[positions.tokens - 1], cos_sin.rows());
  expects(!document_starts || document_starts.numel() == x.rows(),
          "rope: {} tokens, {} document starts", x.rows(), document_starts.numel());
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const auto half = head_dim / 2;
    const bool can = half % wide == 0 && aligned(x, cos_sin);
    const auto blocks = x.rows() < (1 << 20) ? x.rows() : 1 << 20;
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&rotate<width, T>, {blocks}, threads, 0, stream,
             Turned<T>{rows_of<T>(x), rows_of<const float>(cos_sin),
                       document_starts ? document_starts.as<std::int32_t>() : nullptr,
                       static_cast<int>(x.cols() / head_dim), static_cast<int>(half), positions,
                       x.rows(), rotation == Rotation::forward ? 1.0F : -1.0F});
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
