#include <algorithm>
#include <utility>

#include "ops/block_scale.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: a warp takes a block of numbers, 8 per lane, and holds them in registers, so that
// each is read once.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;
constexpr int per_lane = static_cast<int>(BlockCodes::block) / 32;
static_assert(per_lane == 8);
/// Enough to fill a GPU. Each warp has its own row of sums of squares.
constexpr std::int64_t max_thread_blocks = BlockCodes::square_sums / warps;

/// The codes as kernels find them.
struct Layout {
  std::int8_t* bytes;
  std::int64_t part_bytes, part_numel, blocks;  ///< `blocks`: in a part

  __device__ __forceinline__ std::int8_t* part(std::int64_t p) const {
    return bytes + p * part_bytes;
  }
};

/// Eight codes of a lane.
template <CodeFormat format>
using LaneCodes = std::conditional_t<bits_of(format) == 8, Words2, Words1>;
/// Lanes whose numbers share a scale.
template <CodeFormat format>
constexpr int lanes_of_scale = static_cast<int>(scale_numel(format)) / per_lane;

template <CodeFormat format>
__device__ __forceinline__ std::int8_t* codes_at(const Layout& q, std::int64_t part,
                                                 std::int64_t block, int lane) {
  return q.part(part) + (block * 32 + lane) * bits_of(format);
}
template <CodeFormat format>
__device__ __forceinline__ float* scale_at(const Layout& q, std::int64_t part, std::int64_t block,
                                           int lane) {
  return reinterpret_cast<float*>(q.part(part) + q.blocks * 32 * bits_of(format)) +
         (block * 32 + lane) / lanes_of_scale<format>;
}

template <std::size_t i>
constexpr float nf4_level = nf4_levels[i];
template <std::size_t i>
constexpr float nf4_upper_border = nf4_border(i);

/// The 16 levels, one in each lane, twice.
template <std::size_t... i>
__device__ __forceinline__ float level_of_lane(int lane, std::index_sequence<i...> /*all*/) {
  float level = 0;
  ((level = lane % 16 == static_cast<int>(i) ? nf4_level<i> : level), ...);
  return level;
}
template <std::size_t... i>
__device__ __forceinline__ std::int32_t nearest_level(float x,
                                                      std::index_sequence<i...> /*borders*/) {
  return (0 + ... + (x > nf4_upper_border<i> ? 1 : 0));
}
template <CodeFormat format>
__device__ __forceinline__ std::int32_t nearest_code(float x) {
  if constexpr (format == CodeFormat::nf4)
    return nearest_level(x, std::make_index_sequence<nf4_levels.size() - 1>{});
  else
    return __float2int_rn(x);
}

/// Returns what a lane's codes stand for, without the scale.
template <CodeFormat format>
__device__ __forceinline__ Pack<per_lane> unscaled(const LaneCodes<format>& codes, int lane) {
  constexpr int bits = bits_of(format);
  Pack<per_lane> numbers;
  if constexpr (format == CodeFormat::nf4) {
    const float level = level_of_lane(lane, std::make_index_sequence<nf4_levels.size()>{});
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
      numbers.v[i] = __shfl_sync(
          full_warp, level,
          static_cast<int>(codes.w[i * bits / 32] >> static_cast<unsigned>(i * bits % 32) & 15U));
  } else {
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int bit = i * bits;
      const auto top = codes.w[bit / 32] << static_cast<unsigned>(32 - bits - bit % 32);
      numbers.v[i] = static_cast<float>(static_cast<std::int32_t>(top) >> (32 - bits));
    }
  }
  return numbers;
}

/// Loads up to 8 numbers, of which `count` are there; the others are zero.
template <bool whole, class T>
__device__ __forceinline__ Pack<per_lane> load_some(const T* from, std::int64_t count) {
  if constexpr (whole) {
    if (count >= per_lane) return load<per_lane>(from);
    return {};
  } else {
    Pack<per_lane> some{};
    for (int i = 0; i < per_lane && i < count; ++i) some.v[i] = load_one(from + i);
    return some;
  }
}
template <bool whole, class T>
__device__ __forceinline__ void store_some(T* to, const Pack<per_lane>& some, std::int64_t count) {
  if constexpr (whole) {
    if (count >= per_lane) store<per_lane>(to, some);
  } else {
    for (int i = 0; i < per_lane && i < count; ++i) store_one(to + i, some.v[i]);
  }
}

/// Returns how many numbers of a part there are from the lane's first one on, if x has `numel`.
__device__ __forceinline__ std::int64_t numbers_from(const Layout& q, std::int64_t part,
                                                     std::int64_t in_part, std::int64_t numel) {
  const auto of_part = q.part_numel - in_part;
  const auto of_x = numel - part * q.part_numel - in_part;
  return of_part < of_x ? of_part : of_x;
}

/// `whole`: each lane has 8 numbers or none, and they are aligned. Each warp adds to its own row of
/// `squares`.
template <CodeFormat format, bool whole, class T>
__global__ void __launch_bounds__(threads)
    quantize(Layout q, std::int64_t blocks, const T* x, std::int64_t numel, float* squares) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  constexpr int bits = bits_of(format);
  float errors = 0, numbers = 0;
  for (auto index = warp; index < blocks; index += static_cast<std::int64_t>(gridDim.x) * warps) {
    const auto part = index / q.blocks, block = index % q.blocks;
    const auto in_part = block * BlockCodes::block + lane * per_lane;
    const auto mine =
        load_some<whole>(x + part * q.part_numel + in_part, numbers_from(q, part, in_part, numel));
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
      most = larger(most, __float_as_uint(mine.v[i]) & 0x7fffffffU);
#pragma unroll
    for (int mask = lanes_of_scale<format> / 2; mask > 0; mask /= 2)
      most = larger(most, __shfl_xor_sync(full_warp, most, mask));
    const auto scale = block_scale(most, largest_code(format));
    LaneCodes<format> codes{};
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const auto code = static_cast<std::uint32_t>(nearest_code<format>(mine.v[i] * scale.up));
      codes.w[i * bits / 32] |= (code & (bits == 8 ? 0xffU : 0xfU))
                                << static_cast<unsigned>(i * bits % 32);
    }
    store_words(codes_at<format>(q, part, block, lane), codes);
    if (lane % lanes_of_scale<format> == 0) *scale_at<format>(q, part, block, lane) = scale.down;
    const auto rounded = unscaled<format>(codes, lane);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const float error = mine.v[i] - rounded.v[i] * scale.down;
      errors += error * error;
      numbers += mine.v[i] * mine.v[i];
    }
  }
  if (squares == nullptr) return;
  errors = warp_sum(errors);
  numbers = warp_sum(numbers);
  if (lane != 0) return;
  squares[2 * warp] += errors;
  squares[2 * warp + 1] += numbers;
}

template <CodeFormat format>
__device__ __forceinline__ Pack<per_lane> decoded(const Layout& q, std::int64_t part,
                                                  std::int64_t block, int lane) {
  const auto codes = load_words<LaneCodes<format>>(codes_at<format>(q, part, block, lane));
  const float scale = *scale_at<format>(q, part, block, lane);
  auto numbers = unscaled<format>(codes, lane);
#pragma unroll
  for (int i = 0; i < per_lane; ++i) numbers.v[i] *= scale;
  return numbers;
}

template <CodeFormat format, bool whole, class T>
__global__ void __launch_bounds__(threads)
    dequantize(T* y, std::int64_t numel, Layout q, std::int64_t blocks) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto index = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (index >= blocks) return;
  const auto part = index / q.blocks, block = index % q.blocks;
  const auto in_part = block * BlockCodes::block + lane * per_lane;
  store_some<whole>(y + part * q.part_numel + in_part, decoded<format>(q, part, block, lane),
                    numbers_from(q, part, in_part, numel));
}

template <CodeFormat format, bool whole>
__global__ void __launch_bounds__(threads)
    sum_parts(float* y, Layout q, std::int64_t parts, Accumulate accumulate) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto block = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (block >= q.blocks) return;
  Pack<per_lane> sums{};
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto numbers = decoded<format>(q, part, block, lane);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) sums.v[i] += numbers.v[i];
  }
  const auto in_part = block * BlockCodes::block + lane * per_lane;
  const auto count = q.part_numel - in_part;
  if (accumulate == Accumulate::yes) {
    const auto before = load_some<whole>(y + in_part, count);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) sums.v[i] += before.v[i];
  }
  store_some<whole>(y + in_part, sums, count);
}

template <CodeFormat format>
using Format = std::integral_constant<CodeFormat, format>;

Layout layout_of(const BlockCodes& q) {
  return {q.bytes.as<std::int8_t>(), q.bytes.cols(), q.part_numel,
          BlockCodes::blocks(q.part_numel)};
}

/// Calls body with the format, and whether each lane's numbers are all there and aligned.
template <class Body>
void with_shape(const BlockCodes& q, const Tensor& numbers, const Body& body) {
  const bool whole =
      q.part_numel % per_lane == 0 && numbers.numel() % per_lane == 0 && aligned(numbers);
  const auto with_format = [&]<CodeFormat format>(Format<format> f) {
    if (whole)
      body(f, std::true_type{});
    else
      body(f, std::false_type{});
  };
  switch (q.format) {
    case CodeFormat::int8:
      return with_format(Format<CodeFormat::int8>{});
    case CodeFormat::int4:
      return with_format(Format<CodeFormat::int4>{});
    case CodeFormat::int8_by_64:
      return with_format(Format<CodeFormat::int8_by_64>{});
    case CodeFormat::nf4:
      return with_format(Format<CodeFormat::nf4>{});
  }
}

}  // namespace

void quantize_blocks(Stream& stream, const BlockCodes& q, Tensor x, Tensor squares) {
  q.check(x.numel(), squares);
  const auto layout = layout_of(q);
  const auto blocks = q.parts() * layout.blocks;
  if (blocks == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    with_shape(q, x, [&]<CodeFormat format, bool whole>(Format<format>, std::bool_constant<whole>) {
      launch(&quantize<format, whole, T>, {std::min(divide_up(blocks, warps), max_thread_blocks)},
             threads, 0, stream, layout, blocks, x.as<T>(), x.numel(),
             squares ? squares.as<float>() : nullptr);
    });
  });
}

void dequantize_blocks(Stream& stream, Tensor y, const BlockCodes& q) {
  q.check(y.numel());
  const auto layout = layout_of(q);
  const auto blocks = q.parts() * layout.blocks;
  if (blocks == 0) return;
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    with_shape(q, y, [&]<CodeFormat format, bool whole>(Format<format>, std::bool_constant<whole>) {
      launch(&dequantize<format, whole, T>, {divide_up(blocks, warps)}, threads, 0, stream,
             y.as<T>(), y.numel(), layout, blocks);
    });
  });
}

void sum_block_parts(Stream& stream, Tensor y, const BlockCodes& q, Accumulate accumulate) {
  q.check(y.numel());
  expects(y.numel() == q.part_numel, "the sum of parts of {} numbers in {}", q.part_numel,
          y.numel());
  const auto layout = layout_of(q);
  if (layout.blocks == 0) return;
  with_shape(q, y, [&]<CodeFormat format, bool whole>(Format<format>, std::bool_constant<whole>) {
    launch(&sum_parts<format, whole>, {divide_up(layout.blocks, warps)}, threads, 0, stream,
           y.as<float>(), layout, q.parts(), accumulate);
  });
}

}  // namespace LLAMESH_OPS_CUDA
