#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: copy reads x and writes y, add also reads y, fill writes y, scale and softcap
// read and write y, sum_of_squares, largest_magnitude and square_units read x. Each thread keeps
// two or more 16-byte loads in flight.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr std::int64_t threads = 256;

/// y = x or y += x.
template <bool adds, int width, class Y, class X>
__global__ void __launch_bounds__(threads) combine(Y* y, const X* x, std::int64_t count) {
  const auto step = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  auto i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto tail = packs * width + i;
  for (; i < packs; i += 2 * step) {
    const bool two = i + step < packs;
    auto* at = y + i * width;
    auto* then = at + step * width;
    auto a = load<width>(x + i * width);
    auto b = two ? load<width>(x + (i + step) * width) : Pack<width>{};
    if constexpr (adds) {
      const auto c = load<width>(at);
      const auto d = two ? load<width>(then) : Pack<width>{};
#pragma unroll
      for (int j = 0; j < width; ++j) {
        a.v[j] += c.v[j];
        b.v[j] += d.v[j];
      }
    }
    store<width>(at, a);
    if (two) store<width>(then, b);
  }
  for (auto t = tail; t < count; t += step)
    store_one(y + t, adds ? load_one(y + t) + load_one(x + t) : load_one(x + t));
}

enum class Change : std::uint8_t { fill, scale, softcap };

template <Change how>
__device__ __forceinline__ float changed(float y, float value) {
  if constexpr (how == Change::fill) return value;
  return how == Change::scale ? y * value : value * tanhf(y / value);
}

template <Change how, int width, class Y>
__global__ void __launch_bounds__(threads) change(Y* y, float value, std::int64_t count) {
  constexpr bool reads = how != Change::fill;
  const auto step = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  auto i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto tail = packs * width + i;
  for (; i < packs; i += step) {
    auto a = reads ? load<width>(y + i * width) : Pack<width>{};
#pragma unroll
    for (int j = 0; j < width; ++j) a.v[j] = changed<how>(a.v[j], value);
    store<width>(y + i * width, a);
  }
  for (auto t = tail; t < count; t += step)
    store_one(y + t, changed<how>(reads ? load_one(y + t) : 0.0F, value));
}

template <bool adds>
void launch_combine(Stream& stream, const Tensor& y, const Tensor& x) {
  with_type(y.dtype(), [&]<class Y>(std::type_identity<Y>) {
    with_type(x.dtype(), [&]<class X>(std::type_identity<X>) {
      constexpr int wide = per_16_bytes < X >> per_16_bytes<Y> ? per_16_bytes<X> : per_16_bytes<Y>;
      const auto y_all = y.span<Y>();
      const auto x_all = x.span<X>();
      with_width<wide>(aligned(y, x), [&]<int width>(std::integral_constant<int, width>) {
        launch(&combine<adds, width, Y, X>, {blocks_for(divide_up(y.numel(), 2 * width), threads)},
               threads, 0, stream, y_all.data(), static_cast<const X*>(x_all.data()), y.numel());
      });
    });
  });
}

template <Change how>
void launch_change(Stream& stream, const Tensor& y, float value) {
  with_type(y.dtype(), [&]<class Y>(std::type_identity<Y>) {
    const auto all = y.span<Y>();
    with_width<per_16_bytes<Y>>(aligned(y), [&]<int width>(std::integral_constant<int, width>) {
      launch(&change<how, width, Y>, {blocks_for(divide_up(y.numel(), width), threads)}, threads, 0,
             stream, all.data(), value, y.numel());
    });
  });
}

/// Computes each block's partial sum. The grid alone determines the order of all additions.
template <int width>
__global__ void __launch_bounds__(threads)
    square_parts(double* parts, const float* x, std::int64_t count) {
  const auto step = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  double sums[width] = {};
  for (auto i = first; i < packs; i += step) {
    const auto a = load<width>(x + i * width);
#pragma unroll
    for (int j = 0; j < width; ++j) sums[j] += static_cast<double>(a.v[j]) * a.v[j];
  }
  double total = 0;
#pragma unroll
  for (int j = 0; j < width; ++j) total += sums[j];
  for (auto t = packs * width + first; t < count; t += step)
    total += static_cast<double>(x[t]) * x[t];
  total = block_sum(total, dynamic_shared_memory<double>());
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(threads)
    sum_parts(double* total, const double* parts, int count) {
  double mine = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) mine += parts[i];
  mine = block_sum(mine, dynamic_shared_memory<double>());
  if (threadIdx.x == 0) *total = mine;
}

/// Computes each block's largest bits without sign, which are ordered as the magnitudes.
template <int width>
__global__ void __launch_bounds__(threads)
    magnitude_parts(std::uint32_t* parts, const float* x, std::int64_t count) {
  const auto step = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  std::uint32_t largest = 0;
  const auto take = [&](float v) { largest = larger(largest, __float_as_uint(v) & 0x7FFFFFFFU); };
  for (auto i = first; i < packs; i += step) {
    const auto a = load<width>(x + i * width);
#pragma unroll
    for (int j = 0; j < width; ++j) take(a.v[j]);
  }
  for (auto t = packs * width + first; t < count; t += step) take(x[t]);
  largest = block_max(largest, dynamic_shared_memory<std::uint32_t>());
  if (threadIdx.x == 0) parts[blockIdx.x] = largest;
}

__global__ void __launch_bounds__(threads)
    max_of_parts(std::uint32_t* largest, const std::uint32_t* parts, int count) {
  std::uint32_t mine = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) mine = larger(mine, parts[i]);
  mine = block_max(mine, dynamic_shared_memory<std::uint32_t>());
  if (threadIdx.x == 0) *largest = mine;
}

/// Sums the block's units.
__device__ __forceinline__ void write_units(SquareUnits* sum, long long large, long long small) {
  large = block_sum(large, dynamic_shared_memory<long long>());
  __syncthreads();
  small = block_sum(small, dynamic_shared_memory<long long>());
  if (threadIdx.x == 0) *sum = {large, small};
}

/// Sums each block's units, which are so large.
template <int width>
__global__ void __launch_bounds__(threads)
    unit_parts(SquareUnits* parts, const float* x, std::int64_t count, SquareUnits::Sizes size) {
  const auto step = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  const auto packs = count / width;
  const auto first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const double per_large = 1 / size.large, per_small = 1 / size.small;  // powers of two
  long long large = 0, small = 0;
  const auto take = [&](float value) {
    const double square = static_cast<double>(value) * value;
    const double whole = rint(square * per_large);
    large += static_cast<long long>(whole);
    small += static_cast<long long>(rint((square - whole * size.large) * per_small));
  };
  for (auto i = first; i < packs; i += step) {
    const auto a = load<width>(x + i * width);
#pragma unroll
    for (int j = 0; j < width; ++j) take(a.v[j]);
  }
  for (auto t = packs * width + first; t < count; t += step) take(x[t]);
  write_units(parts + blockIdx.x, large, small);
}

__global__ void __launch_bounds__(threads)
    sum_unit_parts(SquareUnits* total, const SquareUnits* parts, int count) {
  long long large = 0, small = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    large += parts[i].large;
    small += parts[i].small;
  }
  write_units(total, large, small);
}

/// Sums each block's hashes.
template <class T>
__global__ void __launch_bounds__(threads)
    hash_parts(unsigned long long* parts, const T* x, std::int64_t count, ElementNumbers numbers) {
  const auto step = static_cast<std::int64_t>(blockDim.x) * gridDim.x;
  unsigned long long sum = 0;
  for (auto i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step)
    sum += hash_of_element(numbers[i], __float_as_uint(load_one(x + i)));
  sum = block_sum(sum, dynamic_shared_memory<unsigned long long>());
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads)
    sum_hash_parts(unsigned long long* total, const unsigned long long* parts, int count) {
  unsigned long long sum = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
  sum = block_sum(sum, dynamic_shared_memory<unsigned long long>());
  if (threadIdx.x == 0) *total = sum;
}

/// Returns the blocks that reduce `count` elements: fixed for all GPUs and enough to fill any, so
/// that a sum in floating point depends on numel only.
std::int64_t reduction_blocks(std::int64_t count) {
  constexpr std::int64_t max_blocks = 1056;
  const auto wanted = divide_up(count, 8 * threads);
  return wanted < max_blocks ? wanted : max_blocks;
}

/// A thread copies one column of every gridDim.y-th row.
template <class T>
__global__ void __launch_bounds__(threads)
    copy_columns(Rows<T> y, Rows<const T> x, int rows, int cols) {
  const int col = blockIdx.x * static_cast<int>(threads) + threadIdx.x;
  if (col >= cols) return;
  for (int row = blockIdx.y; row < rows; row += gridDim.y) y[row][col] = x[row][col];
}

/// Copies a matrix with strided rows.
void copy_rows(Stream& stream, const Tensor& y, const Tensor& x) {
  expects(y.cols() == x.cols() && y.dtype() == x.dtype(), "copy of rows");
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&copy_columns<T>, {divide_up(y.cols(), threads), std::min<std::int64_t>(y.rows(), 528)},
           threads, 0, stream, rows_of<T>(y), rows_of<const T>(x), static_cast<int>(y.rows()),
           static_cast<int>(y.cols()));
  });
}

}  // namespace

void copy(Stream& stream, Tensor y, Tensor x) {
  expects(y.numel() == x.numel(), "copy of {} elements to {}", x.numel(), y.numel());
  if (!y.dense() || !x.dense()) return copy_rows(stream, y, x);
  if (y.numel() > 0) launch_combine<false>(stream, y, x);
}

void add(Stream& stream, Tensor y, Tensor x) {
  expects(y.numel() == x.numel(), "add of {} elements to {}", x.numel(), y.numel());
  if (y.numel() > 0) launch_combine<true>(stream, y, x);
}

void fill(Stream& stream, Tensor y, float value) {
  if (y.numel() > 0) launch_change<Change::fill>(stream, y, value);
}

void scale(Stream& stream, Tensor y, float factor) {
  if (y.numel() > 0) launch_change<Change::scale>(stream, y, factor);
}

void softcap(Stream& stream, Tensor y, float c) {
  if (y.numel() > 0) launch_change<Change::softcap>(stream, y, c);
}

double sum_of_squares(Stream& stream, const std::vector<Tensor>& xs) {
  std::int64_t blocks = 0;
  for (const Tensor& x : xs) blocks += x.numel() == 0 ? 0 : reduction_blocks(x.numel());
  if (blocks == 0) return 0.0;
  const Scratch parts(stream, (blocks + 1) * 8);
  const auto shared_bytes = threads / 32 * 8;
  auto* next = parts.as<double>() + 1;
  for (const Tensor& x : xs) {
    if (x.numel() == 0) continue;
    const auto blocks_of_x = reduction_blocks(x.numel());
    with_width<4>(aligned(x), [&]<int width>(std::integral_constant<int, width>) {
      launch(&square_parts<width>, {blocks_of_x}, threads, shared_bytes, stream, next,
             static_cast<const float*>(x.span<float>().data()), x.numel());
    });
    next += blocks_of_x;
  }
  launch(&sum_parts, {1}, threads, shared_bytes, stream, parts.as<double>(),
         static_cast<const double*>(parts.as<double>() + 1), static_cast<int>(blocks));
  return read_back(stream, static_cast<const double*>(parts.as<double>()));
}

float largest_magnitude(Stream& stream, Tensor x) {
  const auto all = x.span<float>();
  const auto count = x.numel();
  if (count == 0) return 0.0F;
  const auto blocks = reduction_blocks(count);
  const Scratch parts(stream, (blocks + 1) * 4);
  const auto shared_bytes = threads / 32 * 4;
  with_width<4>(aligned(x), [&]<int width>(std::integral_constant<int, width>) {
    launch(&magnitude_parts<width>, {blocks}, threads, shared_bytes, stream,
           parts.as<std::uint32_t>() + 1, static_cast<const float*>(all.data()), count);
  });
  launch(&max_of_parts, {1}, threads, shared_bytes, stream, parts.as<std::uint32_t>(),
         static_cast<const std::uint32_t*>(parts.as<std::uint32_t>() + 1),
         static_cast<int>(blocks));
  return read_back(stream, static_cast<const float*>(parts.as<float>()));
}

SquareUnits square_units(Stream& stream, Tensor x, int exponent) {
  const auto all = x.span<float>();
  const auto count = x.numel();
  if (count == 0) return {};
  const auto blocks = reduction_blocks(count);
  const Scratch parts(stream, (blocks + 1) * static_cast<std::int64_t>(sizeof(SquareUnits)));
  const auto shared_bytes = threads / 32 * 8;
  with_width<4>(aligned(x), [&]<int width>(std::integral_constant<int, width>) {
    launch(&unit_parts<width>, {blocks}, threads, shared_bytes, stream, parts.as<SquareUnits>() + 1,
           static_cast<const float*>(all.data()), count, SquareUnits::sizes(exponent));
  });
  launch(&sum_unit_parts, {1}, threads, shared_bytes, stream, parts.as<SquareUnits>(),
         static_cast<const SquareUnits*>(parts.as<SquareUnits>() + 1), static_cast<int>(blocks));
  return read_back(stream, static_cast<const SquareUnits*>(parts.as<SquareUnits>()));
}

std::uint64_t hash_elements(Stream& stream, Tensor x, ElementNumbers numbers) {
  if (x.numel() == 0) return 0;
  const auto blocks = reduction_blocks(x.numel());
  const Scratch parts(stream, (blocks + 1) * 8);
  const auto shared_bytes = threads / 32 * 8;
  auto* const sums = parts.as<unsigned long long>();
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&hash_parts<T>, {blocks}, threads, shared_bytes, stream, sums + 1,
           static_cast<const T*>(x.as<T>()), x.numel(), numbers);
  });
  launch(&sum_hash_parts, {1}, threads, shared_bytes, stream, sums,
         static_cast<const unsigned long long*>(sums + 1), static_cast<int>(blocks));
  return read_back(stream, static_cast<const unsigned long long*>(sums));
}

}  // namespace LLAMESH_OPS_CUDA
