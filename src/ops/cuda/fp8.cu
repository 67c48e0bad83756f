#include <algorithm>

#include "ops/cuda/fp8.cuh"
#include "ops/cuda/kernels.hpp"

// Memory-bound: quantizing reads a matrix twice (the second time mostly from the L2 cache) and
// writes a byte for each element. Columns are divided among blocks, which find maxima, then
// transpose: a weight has fewer columns than threads that could read it.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int tile = 64;                        // columns that a block takes
constexpr int tile_rows = 128;                  // transposed at once
constexpr int word_stride = tile_rows / 4 + 1;  // between columns in shared memory

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
  for (int i = threadIdx.x * width; i < cols; i += threads * width)
    store_narrowed(to + i, load<width>(from + i), scale.up);
}

/// Loads and converts `width` elements: 1 or 8.
template <int width>
__device__ __forceinline__ Pack<width> widened(const e4m3* from) {
  Pack<width> to;
  if constexpr (width == 1) {
    to.v[0] = static_cast<float>(*from);
  } else {
    const auto words = load_words<Words2>(from);
#pragma unroll
    for (int i = 0; i < width; ++i)
      to.v[i] = static_cast<float>(
          e4m3{static_cast<std::uint8_t>(words.w[i / 4] >> (8U * static_cast<unsigned>(i % 4)))});
  }
  return to;
}

/// A dense matrix or a stack, as the kernels for columns read it.
template <class T>
struct Numbers {
  const T* x;
  std::int64_t cols;

  template <int width>
  __device__ __forceinline__ Pack<width> at(std::int64_t row, int col) const {
    return load<width>(x + row * cols + col);
  }
};
/// Likewise, as e4m3 numbers.
struct Codes {
  const e4m3* values;
  const float* scales;
  std::int64_t cols;

  template <int width>
  __device__ __forceinline__ Pack<width> at(std::int64_t row, int col) const {
    auto pack = widened<width>(values + row * cols + col);
#pragma unroll
    for (int i = 0; i < width; ++i) pack.v[i] *= scales[row];
    return pack;
  }
};

/// The part of a matrix (blockIdx.z) that a thread reads: `width` columns, in every `lines`th row.
template <int width>
struct PartOfColumns {
  static constexpr int lanes = tile / width, lines = threads / lanes;
  int lane = static_cast<int>(threadIdx.x) % lanes, line = static_cast<int>(threadIdx.x) / lanes;
  int col = static_cast<int>(blockIdx.x) * tile + lane * width;
};

/// maxima (matrices, gridDim.y, cols) = the largest magnitudes, as bits.
template <int width, class Source>
__global__ void __launch_bounds__(threads)
    column_maxima(std::uint32_t* maxima, Source from, std::int64_t rows, int cols) {
  auto* most = dynamic_shared_memory<std::uint32_t>();  // (lines, tile)
  const PartOfColumns<width> mine;
  std::uint32_t here[width] = {};
  if (mine.col < cols) {
#pragma unroll 4
    for (std::int64_t r = blockIdx.y * mine.lines + mine.line; r < rows;
         r += static_cast<std::int64_t>(gridDim.y) * mine.lines) {
      const auto pack = from.template at<width>(blockIdx.z * rows + r, mine.col);
#pragma unroll
      for (int i = 0; i < width; ++i) here[i] = larger(here[i], magnitude_of(pack.v[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < width; ++i) most[mine.line * tile + mine.lane * width + i] = here[i];
  __syncthreads();
  const int col = static_cast<int>(blockIdx.x) * tile + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= tile || col >= cols) return;
  std::uint32_t all = 0;
  for (int line = 0; line < mine.lines; ++line) all = larger(all, most[line * tile + threadIdx.x]);
  maxima[(static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * cols + col] = all;
}

/// A thread takes a column of the matrix blockIdx.y, with `parts` maxima.
__global__ void __launch_bounds__(threads)
    scale_of_columns(float* scales, const std::uint32_t* maxima, int parts, int cols) {
  const int col = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (col >= cols) return;
  const std::uint32_t* from = maxima + static_cast<std::int64_t>(blockIdx.y) * parts * cols + col;
  std::uint32_t most = 0;
  for (int part = 0; part < parts; ++part)
    most = larger(most, from[static_cast<std::int64_t>(part) * cols]);
  scales[static_cast<std::int64_t>(blockIdx.y) * cols + col] = fp8_scale(most).down;
}

/// Writes a block's columns, which lie in shared memory with four rows in a word.
template <int width>
__device__ __forceinline__ void write_columns(e4m3* values, const std::uint32_t* words,
                                              std::int64_t first_row, std::int64_t rows, int cols) {
  const int first_col = static_cast<int>(blockIdx.x) * tile;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.z) * cols + first_col;
  constexpr int once = width == 1 ? 1 : 16;  // elements that a thread writes
  constexpr int a_column = tile_rows / once;
  for (int i = threadIdx.x; i < tile * a_column; i += threads) {
    const int c = i / a_column, r = i % a_column * once;
    if (first_col + c >= cols || first_row + r >= rows) continue;
    const std::uint32_t* from = words + c * word_stride + r / 4;
    e4m3* to = values + (first + c) * rows + first_row + r;
    if constexpr (width == 1)
      to->bits = static_cast<std::uint8_t>(*from >> (8U * static_cast<unsigned>(r % 4)));
    else
      store_words(to, Words4{{from[0], from[1], from[2], from[3]}});
  }
}

/// A block takes `tile_rows` rows and `tile` columns.
template <int width, class Source>
__global__ void __launch_bounds__(threads)
    quantize_transposed(e4m3* values, const float* scales, Source from, std::int64_t rows,
                        int cols) {
  auto* words = dynamic_shared_memory<std::uint32_t>();  // (tile, word_stride)
  const PartOfColumns<width> mine;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * tile_rows;
  if (mine.col < cols) {
    float up[width];  // exact: scales are powers of two, or NaN
#pragma unroll
    for (int i = 0; i < width; ++i)
      up[i] = 1 / scales[static_cast<std::int64_t>(blockIdx.z) * cols + mine.col + i];
    for (int four = mine.line; four < tile_rows / 4; four += mine.lines) {
      std::uint32_t word[width] = {};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const std::int64_t row = first_row + 4 * four + r;
        if (row >= rows) break;
        const auto pack = from.template at<width>(blockIdx.z * rows + row, mine.col);
#pragma unroll
        for (int i = 0; i < width; ++i) word[i] |= narrowed(pack.v[i] * up[i]) << (8 * r);
      }
#pragma unroll
      for (int i = 0; i < width; ++i) words[(mine.lane * width + i) * word_stride + four] = word[i];
    }
  }
  __syncthreads();
  write_columns<width>(values, words, first_row, rows, cols);
}

template <class T>
__global__ void __launch_bounds__(threads) dequantize(T* y, const e4m3* values, const float* scales,
                                                      std::int64_t numel, std::int64_t cols) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * threads;
  for (auto i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < numel;
       i += stride)
    store_one(y + i, static_cast<float>(values[i]) * scales[i / cols]);
}

/// Returns true if eight neighbors are in one row, and aligned.
bool is_wide(const Fp8Run& q, const Tensor& x) {
  return (q.first | q.cols | x.numel()) % 8 == 0 && aligned(x) &&
         reinterpret_cast<std::uintptr_t>(q.values.data()) % 8 == 0;
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

/// Quantizes a run that begins with the element `first`; `scales` are those for all rows.
template <int width, class T>
__global__ void __launch_bounds__(threads)
    quantize_elements(e4m3* values, const float* scales, const T* x, std::int64_t numel,
                      std::int64_t first, std::int64_t cols) {
  const auto stride = static_cast<std::int64_t>(gridDim.x) * threads * width;
  for (auto i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * width; i < numel;
       i += stride) {
    const float up = 1 / scales[(first + i) / cols];  // exact: powers of two, or NaN
    store_narrowed(values + i, load<width>(x + i), up);
  }
}

void check(const Fp8Matrix& q) {
  expects(q.values.dtype() == DType::e4m3 && q.values.dense() && q.scales.dtype() == DType::f32 &&
              q.scales.numel() == q.values.rows(),
          "FP8 values of {} rows with {} scales", q.values.rows(), q.scales.numel());
}

void check_columns(const Fp8Matrix& q, const Tensor& x) {
  expects(x.dense() && x.numel() == q.values.numel() &&
              q.values.rows() % std::max<std::int64_t>(x.cols(), 1) == 0,
          "columns of {} x {} in {} rows", x.rows(), x.cols(), q.values.rows());
}

/// Quantizes the columns of `from`, whose packs of eight columns can be loaded if it is `aligned`.
template <class Source>
void quantize_columns_of(Stream& stream, const Fp8Matrix& q, const Source& from, bool aligned) {
  const auto rows = q.values.cols(), cols = from.cols, matrices = q.values.rows() / cols;
  const auto across = divide_up(cols, tile);
  // As many blocks as the GPU takes at a time find maxima.
  const auto row_tiles = divide_up(rows, tile_rows);
  const auto parts =
      std::clamp<std::int64_t>(8 * multiprocessors() / (across * matrices), 1, row_tiles);
  const Scratch maxima(stream, matrices * parts * cols * 4);
  const bool wide = aligned && cols % 8 == 0 && rows % 16 == 0 &&
                    reinterpret_cast<std::uintptr_t>(q.values.data()) % 16 == 0;
  with_width<8>(wide, [&]<int width>(std::integral_constant<int, width>) {
    launch(&column_maxima<width, Source>, {across, parts, matrices}, threads,
           PartOfColumns<width>::lines * tile * 4, stream, maxima.as<std::uint32_t>(), from, rows,
           static_cast<int>(cols));
    launch(&scale_of_columns, {divide_up(cols, threads), matrices}, threads, 0, stream,
           q.scales.as<float>(), maxima.as<std::uint32_t>(), static_cast<int>(parts),
           static_cast<int>(cols));
    launch(&quantize_transposed<width, Source>, {across, row_tiles, matrices}, threads,
           tile * word_stride * 4, stream, q.values.as<e4m3>(), q.scales.as<float>(), from, rows,
           static_cast<int>(cols));
  });
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
  check_columns(q, x);
  if (x.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    quantize_columns_of(stream, q, Numbers<T>{x.as<T>(), x.cols()}, aligned(x));
  });
}

void requantize_columns(Stream& stream, const Fp8Matrix& q, const Fp8Matrix& w) {
  check(q);
  check(w);
  check_columns(q, w.values);
  if (w.values.numel() == 0) return;
  quantize_columns_of(stream, q, Codes{w.values.as<e4m3>(), w.scales.as<float>(), w.values.cols()},
                      reinterpret_cast<std::uintptr_t>(w.values.data()) % 8 == 0);
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
             stream, q.values.as<e4m3>(), q.scales.as<float>(), x.as<T>(), x.numel(), q.first,
             q.cols);
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
