#include "ops/cuda/kernels.hpp"

#include "ops/cuda/grouped_product.cuh"

// Compute-bound: 2 in out multiply-adds per row. bf16 matrices with rows at multiples of 16 bytes
// go to the tensor cores (mma_grouped_linear.cu). The kernel here takes all others.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int tile = 64;   // rows and columns of c per block
constexpr int steps = 16;  // of the depth per iteration
constexpr int side = 4;    // rows and columns of c per thread
constexpr int threads = (tile / side) * (tile / side);
constexpr int stride = tile + 4;  // in shared memory; a multiple of 16 bytes

/// Copies rows [first, first + tile) at columns [k, k + steps) to shared memory, transposed; zeros
/// outside the (rows, depth) that there are.
template <class T>
__device__ __forceinline__ void copy_transposed(float* to, const Strided<const T>& from, int first,
                                                int rows, int k, int depth) {
  const bool by_rows = from.col == 1;  // neighboring threads take neighboring elements
  for (int i = threadIdx.x; i < tile * steps; i += threads) {
    const int r = by_rows ? i / steps : i % tile, c = by_rows ? i % steps : i / tile;
    const bool there = first + r < rows && k + c < depth;
    to[c * stride + r] =
        there ? load_one(from.data + (first + r) * from.row + (k + c) * from.col) : 0.0F;
  }
}

template <class C, class T>
__global__ void __launch_bounds__(threads) multiply(GroupedProduct<C, T> product) {
  ExpertTile<C, T> t;
  if (!find_tile<tile>(t, product)) return;
  auto* a = dynamic_shared_memory<float>();
  auto* b = a + steps * stride;
  const Strided<const T> columns{t.b.data, t.b.col, t.b.row};
  const int row = static_cast<int>(threadIdx.x) / (tile / side) * side;
  const int col = static_cast<int>(threadIdx.x) % (tile / side) * side;
  float sums[side][side] = {};
  for (int k = 0; k < t.depth; k += steps) {
    copy_transposed(a, t.a, t.row, t.rows, k, t.depth);
    copy_transposed(b, columns, t.col, t.cols, k, t.depth);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const auto x = load<side>(a + i * stride + row);
      const auto y = load<side>(b + i * stride + col);
#pragma unroll
      for (int r = 0; r < side; ++r) {
#pragma unroll
        for (int c = 0; c < side; ++c) sums[r][c] += x.v[r] * y.v[c];
      }
    }
    __syncthreads();  // both are consumed
  }
#pragma unroll
  for (int r = 0; r < side; ++r) {
#pragma unroll
    for (int c = 0; c < side; ++c) {
      const int m = t.row + row + r, n = t.col + col + c;
      if (m >= t.rows || n >= t.cols) continue;
      auto* to = t.c[m] + n;
      store_one(to, sums[r][c] + (product.accumulate ? load_one(to) : 0.0F));
    }
  }
}

template <class C, class T>
void launch_multiply(Stream& stream, const GroupedProduct<C, T>& product) {
  launch(&multiply<C, T>, tile_grid<tile>(product), threads, 2 * steps * stride * 4, stream,
         product);
}

void check(const Tensor& w, const Tensor& starts, const Tensor& wide, const Tensor& narrow) {
  expects(w.dims() == 3 && w.dense() && starts.numel() == w.size(0) + 1 &&
              wide.rows() == narrow.rows() && wide.cols() == w.size(1) &&
              narrow.cols() == w.size(2) && wide.dtype() == narrow.dtype(),
          "grouped_linear shapes");
}

template <class T>
Strided<const T> strided(const Tensor& tensor) {
  const auto rows = rows_of<const T>(tensor);
  return {rows.data, rows.stride, 1};
}

/// c = or += a b, with the rows of each expert: c (R, cols), a (R, depth), b (N, depth, cols), or
/// its matrices transposed.
void multiply_rows(Stream& stream, const Tensor& c, const Tensor& a, const Tensor& b,
                   bool b_transposed, const Tensor& starts, Accumulate accumulate) {
  expects(c.dtype() == b.dtype(), "rows in {}, experts in {}", name_of(c.dtype()),
          name_of(b.dtype()));
  if (c.numel() == 0) return;
  with_type(a.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto stored = strided<T>(b);
    const GroupedProduct<T, T> product{rows_of<T>(c),
                                       strided<T>(a),
                                       b_transposed ? stored.transposed() : stored,
                                       starts.as<std::int32_t>(),
                                       static_cast<int>(b.size(0)),
                                       static_cast<int>(c.rows()),
                                       0,
                                       static_cast<int>(c.cols()),
                                       static_cast<int>(a.cols()),
                                       Ragged::rows,
                                       accumulate == Accumulate::yes};
    if constexpr (std::is_same_v<T, bf16>)
      if (c.cols() % 8 == 0 && a.cols() % 8 == 0 && aligned(c, a, b))
        return mma_grouped_product(stream, product, b_transposed);
    launch_multiply(stream, product);
  });
}

}  // namespace

void grouped_linear(Stream& stream, Tensor y, Tensor x, Tensor w, Tensor starts,
                    Accumulate accumulate) {
  check(w, starts, y, x);
  multiply_rows(stream, y, x, w, true, starts, accumulate);
}

void grouped_linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Tensor starts,
                                   Accumulate accumulate) {
  check(w, starts, dy, dx);
  multiply_rows(stream, dx, dy, w, false, starts, accumulate);
}

void grouped_linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Tensor starts,
                                    Accumulate accumulate) {
  check(dw, starts, dy, x);
  if (dw.numel() == 0) return;
  with_type(dw.dtype(), [&]<class C>(std::type_identity<C>) {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      const GroupedProduct<C, T> product{rows_of<C>(dw),
                                         strided<T>(dy).transposed(),
                                         strided<T>(x),
                                         starts.as<std::int32_t>(),
                                         static_cast<int>(dw.size(0)),
                                         static_cast<int>(x.rows()),
                                         static_cast<int>(dw.size(1)),
                                         static_cast<int>(dw.size(2)),
                                         0,
                                         Ragged::depth,
                                         accumulate == Accumulate::yes};
      if constexpr (std::is_same_v<T, bf16>)
        if (dy.cols() % 8 == 0 && x.cols() % 8 == 0 && aligned(dw, dy, x))
          return mma_grouped_product(stream, product);
      launch_multiply(stream, product);
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
