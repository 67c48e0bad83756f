#include <algorithm>

#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"
#include "ops/fp8_scale.hpp"

// Memory-bound: quantizing reads a matrix twice (the second time mostly from the L2 cache) and
// writes a byte for each element.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int tile = 64;                   // rows and columns that are transposed at once
constexpr int tile_rows = threads / tile;  // of x, read at once

constexpr int word_stride = tile / 4 + 1;  // of a column's bytes in shared memory

__device__ __forceinline__ std::uint32_t magnitude_of(float x) {
  return __float_as_uint(x) & 0x7fffffffU;
}

/// Returns e4m3 bits of a number up to 448, or NaN.
__device__ __forceinline__ std::uint32_t narrowed(float x) {
  const std::uint32_t magnitude = magnitude_of(x);
  std::uint32_t bits = 0x7fU;
  if (magnitude < 0x3c800000U)  // 2^-6; the sum's last bit is worth 2^-9, as a subnormal's
    bits = __float_as_uint(__uint_as_float(magnitude) + 16384.0F) - 0x46800000U;
  else if (magnitude <= infinity_bits)
    bits = ((magnitude + 0x7ffffU + ((magnitude >> 20U) & 1U)) >> 20U) - (120U << 3U);
  return bits | ((__float_as_uint(x) >> 24U) & 0x80U);
}

/// A block takes a row.
template <int width, class T>
__global__ void __launch_bounds__(threads)
    quantize_row(e4m3* values, float* scales, Rows<const T> x, int cols) {
  auto* shared = dynamic_shared_memory<std::uint32_t>();
  const T* from = x[blockIdx.x];
  std::uint32_t most = 0;
  for (int i = threadIdx.x * width; i < cols; i += threads * width) {
    const auto pack = load<width>(from + i);
#pragma unroll
    for (int j = 0; j < width; ++j) most = larger(most, magnitude_of(pack.v[j]));
  }
  const auto scale = fp8_scale(block_max(most, shared));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.down;
  e4m3* to = values + static_cast<std::int64_t>(blockIdx.x) * cols;
  for (int i = threadIdx.x * width; i < cols; i += threads * width) {
    const auto pack = load<width>(from + i);
    if constexpr (width == 1) {
      to[i].bits = static_cast<std::uint8_t>(narrowed(pack.v[0] * scale.up));
    } else {
      Words2 words{};
#pragma unroll
      for (int j = 0; j < width; ++j)
        words.w[j / 4] |= narrowed(pack.v[j] * scale.up) << (8U * static_cast<unsigned>(j % 4));
      store_words(to + i, words);
    }
  }
}

/// A block takes up to `tile` columns of the matrix blockIdx.y, with `rows` rows.
template <class T>
__global__ void __launch_bounds__(threads)
    quantize_column_tile(e4m3* values, float* scales, const T* x, std::int64_t rows, int cols) {
  auto* most = dynamic_shared_memory<std::uint32_t>();           // (tile_rows, tile)
  auto* up = reinterpret_cast<float*>(most + tile_rows * tile);  // (tile)
  auto* words = reinterpret_cast<std::uint32_t*>(up + tile);     // (tile, word_stride), transposed
  const int column = static_cast<int>(threadIdx.x) % tile;
  const int part = static_cast<int>(threadIdx.x) / tile;
  const int first = static_cast<int>(blockIdx.x) * tile;
  const bool there = first + column < cols;
  const T* from = x + blockIdx.y * rows * cols + first + column;
  const std::int64_t to_row = static_cast<std::int64_t>(blockIdx.y) * cols + first;
  std::uint32_t mine = 0;
  if (there)
    for (std::int64_t r = part; r < rows; r += tile_rows)
      mine = larger(mine, magnitude_of(load_one(from + r * cols)));
  most[part * tile + column] = mine;
  __syncthreads();
  if (part == 0) {
    for (int i = 1; i < tile_rows; ++i) mine = larger(mine, most[i * tile + column]);
    const auto scale = fp8_scale(mine);
    up[column] = scale.up;
    if (there) scales[to_row + column] = scale.down;
  }
  __syncthreads();
  for (std::int64_t r = 0; r < rows; r += tile) {
    for (int word = part; there && word < tile / 4; word += tile_rows) {
      std::uint32_t four = 0;
      for (int i = 0; i < 4 && r + 4 * word + i < rows; ++i)
        four |= narrowed(load_one(from + (r + 4 * word + i) * cols) * up[column])
                << (8U * static_cast<unsigned>(i));
      words[column * word_stride + word] = four;
    }
    __syncthreads();
    // Neighboring threads write neighboring elements of a column.
    const int element = column;
    for (int c = part; r + element < rows && c < tile && first + c < cols; c += tile_rows)
      values[(to_row + c) * rows + r + element].bits = static_cast<std::uint8_t>(
          words[c * word_stride + element / 4] >> (8U * static_cast<unsigned>(element % 4)));
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(threads) dequantize(T* y, const e4m3* values, const float* scales,
                                                      std::int64_t numel, std::int64_t cols) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (auto i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < numel;
       i += stride)
    store_one(y + i, static_cast<float>(values[i]) * scales[i / cols]);
}

/// A run as kernels find it.
struct Run {
  std::int8_t* parts;
  const float* scales;
  std::int64_t part_bytes, part_numel, at, first, cols;

  __device__ __forceinline__ e4m3* code(std::int64_t i) const {
    const auto part = (at + i) / part_numel;
    return reinterpret_cast<e4m3*>(parts + part * part_bytes + (at + i - part * part_numel));
  }
  __device__ __forceinline__ float scale(std::int64_t i) const {
    return scales[(first + i) / cols];
  }
};

Run run_of(const Fp8Run& q) {
  return {q.parts.as<std::int8_t>(),
          q.scales.as<float>(),
          q.parts.cols(),
          q.part_numel,
          q.at,
          q.first,
          q.cols};
}

/// Returns true if eight neighbors are in one row and one part, and aligned in both.
bool is_wide(const Fp8Run& q, const Tensor& x) {
  const auto all = q.first | q.cols | q.at | q.part_numel | q.parts.cols() | x.numel();
  return all % 8 == 0 && aligned(x) && reinterpret_cast<std::uintptr_t>(q.parts.data()) % 8 == 0;
}

/// A block takes a row. In the first one the run begins behind `before` elements.
template <class T>
__global__ void __launch_bounds__(threads)
    row_maximum(float* maxima, const T* x, std::int64_t before, std::int64_t numel,
                std::int64_t cols) {
  auto* shared = dynamic_shared_memory<std::uint32_t>();
  const auto end_of_row = (static_cast<std::int64_t>(blockIdx.x) + 1) * cols - before;
  const auto end = end_of_row < numel ? end_of_row : numel;
  const auto begin = end_of_row > cols ? end_of_row - cols : 0;
  std::uint32_t most = 0;
  for (auto i = begin + threadIdx.x; i < end; i += threads)
    most = larger(most, magnitude_of(load_one(x + i)));
  most = block_max(most, shared);
  if (threadIdx.x == 0) maxima[blockIdx.x] = __uint_as_float(most);
}

/// A thread takes a row.
__global__ void __launch_bounds__(threads)
    scale_of_rows(float* scales, std::int64_t rows, const float* maxima, std::int64_t count,
                  const std::int32_t* first_rows, int ranks) {
  const auto row = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (row >= rows) return;
  std::uint32_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto i = row - first_rows[rank];
    if (i >= 0 && i < count) most = larger(most, __float_as_uint(maxima[rank * count + i]));
  }
  scales[row] = fp8_scale(most).down;
}

template <int width, class T>
__global__ void __launch_bounds__(threads)
    quantize_elements(Run q, const T* x, std::int64_t numel) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * threads * width;
  for (auto i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * width; i < numel;
       i += stride) {
    const float up = 1 / q.scale(i);  // exact: scales are powers of two, or NaN
    const auto pack = load<width>(x + i);
    if constexpr (width == 1) {
      q.code(i)->bits = static_cast<std::uint8_t>(narrowed(pack.v[0] * up));
    } else {
      Words2 words{};
#pragma unroll
      for (int j = 0; j < width; ++j)
        words.w[j / 4] |= narrowed(pack.v[j] * up) << (8U * static_cast<unsigned>(j % 4));
      store_words(q.code(i), words);
    }
  }
}

template <int width, class T>
__global__ void __launch_bounds__(threads) dequantize_elements(T* y, Run q, std::int64_t numel) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * threads * width;
  for (auto i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * width; i < numel;
       i += stride) {
    const float scale = q.scale(i);
    Pack<width> pack;
    if constexpr (width == 1) {
      pack.v[0] = static_cast<float>(*q.code(i)) * scale;
    } else {
      const auto words = load_words<Words2>(q.code(i));
#pragma unroll
      for (int j = 0; j < width; ++j)
        pack.v[j] = static_cast<float>(e4m3{static_cast<std::uint8_t>(
                        words.w[j / 4] >> (8U * static_cast<unsigned>(j % 4)))}) *
                    scale;
    }
    store<width>(y + i, pack);
  }
}

void check(const Fp8Matrix& q) {
  expects(q.values.dtype() == DType::e4m3 && q.values.dense() && q.scales.dtype() == DType::f32 &&
              q.scales.numel() == q.values.rows(),
          "FP8 values of {} rows with {} scales", q.values.rows(), q.scales.numel());
}

}  // namespace

void quantize_rows(Stream& stream, const Fp8Matrix& q, Tensor x) {
  check(q);
  expects(same_matrix_shape(q.values, x), "quantize_rows shapes");
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    const bool wide = x.cols() % 8 == 0 && aligned(x) &&
                      reinterpret_cast<std::uintptr_t>(q.values.data()) % 8 == 0;
    with_width<8>(wide, [&]<int width>(std::integral_constant<int, width>) {
      launch(&quantize_row<width, T>, {x.rows()}, threads, threads / 32 * 4, stream,
             q.values.as<e4m3>(), q.scales.as<float>(), rows_of<const T>(x),
             static_cast<int>(x.cols()));
    });
  });
}

void quantize_columns(Stream& stream, const Fp8Matrix& q, Tensor x) {
  check(q);
  const auto rows = q.values.cols(), cols = x.cols();
  expects(x.dense() && x.numel() == q.values.numel() &&
              q.values.rows() % std::max<std::int64_t>(cols, 1) == 0,
          "quantize_columns shapes");
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&quantize_column_tile<T>, {divide_up(cols, tile), x.rows() / rows}, threads,
           (tile_rows + 1 + word_stride) * tile * 4, stream, q.values.as<e4m3>(),
           q.scales.as<float>(), x.as<T>(), rows, static_cast<int>(cols));
  });
}

void dequantize_rows(Stream& stream, Tensor y, const Fp8Matrix& q) {
  check(q);
  expects(y.dense() && y.numel() == q.values.numel(), "dequantize_rows shapes");
  if (y.numel() == 0) return;
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&dequantize<T>, {blocks_for(y.numel(), threads)}, threads, 0, stream, y.as<T>(),
           q.values.as<e4m3>(), q.scales.as<float>(), y.numel(), q.values.cols());
  });
}

void row_maxima(Stream& stream, Tensor maxima, Tensor x, const Fp8Run& run) {
  expects(maxima.dtype() == DType::f32, "maxima are fp32");
  const auto before = run.first % run.cols;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&row_maximum<T>, {divide_up(before + x.numel(), run.cols)}, threads, threads / 32 * 4,
           stream, maxima.as<float>(), x.as<T>(), before, x.numel(), run.cols);
  });
}

void row_scales(Stream& stream, Tensor scales, Tensor maxima, Tensor first_rows) {
  expects(maxima.rows() == first_rows.numel() && maxima.dense(), "row_scales shapes");
  launch(&scale_of_rows, {divide_up(scales.numel(), threads)}, threads, 0, stream,
         scales.as<float>(), scales.numel(), maxima.as<float>(), maxima.cols(),
         first_rows.as<std::int32_t>(), static_cast<int>(maxima.rows()));
}

void quantize_run(Stream& stream, const Fp8Run& q, Tensor x) {
  q.check(x.numel());
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    with_width<8>(is_wide(q, x), [&]<int width>(std::integral_constant<int, width>) {
      launch(&quantize_elements<width, T>, {blocks_for(x.numel() / width, threads)}, threads, 0,
             stream, run_of(q), x.as<T>(), x.numel());
    });
  });
}

void dequantize_run(Stream& stream, Tensor y, const Fp8Run& q) {
  q.check(y.numel());
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    with_width<8>(is_wide(q, y), [&]<int width>(std::integral_constant<int, width>) {
      launch(&dequantize_elements<width, T>, {blocks_for(y.numel() / width, threads)}, threads, 0,
             stream, y.as<T>(), run_of(q), y.numel());
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
