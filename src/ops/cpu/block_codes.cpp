#include <algorithm>
#include <array>
#include <cstring>

#include "ops/block_scale.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

constexpr auto block_numel = BlockCodes::block;

using VecBytes [[gnu::vector_size(vec_width)]] = std::int8_t;

/// A block's codes, one in each byte.
struct Codes {
  alignas(64) std::int8_t at[block_numel];
};
/// The numbers that a block stands for.
struct Numbers {
  alignas(64) float at[block_numel];
};

/// A block in its part, with the numbers that it stands for.
struct Block {
  std::int8_t* codes;
  float* scales;
  std::int64_t first, count;  ///< of x; without those that x lacks
};

Block block_at(const BlockCodes& q, std::int64_t index, std::int64_t numel) {
  const auto blocks = BlockCodes::blocks(q.part_numel);
  const auto part = index / blocks, in_part = index % blocks;
  auto* const bytes = q.bytes.as<std::int8_t>() + part * q.bytes.cols();
  const auto code_bytes = block_numel * bits_of(q.format) / 8;
  const auto scales = block_numel / scale_numel(q.format);
  const auto first = part * q.part_numel + in_part * block_numel;
  const auto end = std::min({first + block_numel, (part + 1) * q.part_numel, numel});
  return {bytes + in_part * code_bytes,
          reinterpret_cast<float*>(bytes + blocks * code_bytes) + in_part * scales, first,
          std::max<std::int64_t>(0, end - first)};
}

std::uint32_t largest_of(VecBits v) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < vec_width; ++i) most = std::max(most, v[i]);
  return most;
}

VecInt nearest_nf4(Vec x) {
  VecInt level{};
  for (std::size_t i = 0; i + 1 < nf4_levels.size(); ++i) level -= x > nf4_border(i);
  return level;
}

/// Rounds numbers that share a scale, and returns it.
template <class T>
float encode(std::int8_t* codes, const T* x, std::int64_t count, CodeFormat format) {
  VecBits most{};
  for_each_vec(count, [&](std::int64_t i, auto lanes) {
    const VecBits magnitude = std::bit_cast<VecBits>(load(x + i, lanes)) & 0x7fffffffU;
    most = magnitude > most ? magnitude : most;
  });
  const auto [up, down] = block_scale(largest_of(most), largest_code(format));
  for_each_vec(count, [&](std::int64_t i, auto lanes) {
    // All lanes of a vector share the scale; those that x lacks are zero.
    const Vec scaled = load(x + i, lanes) * up;
    const VecInt code = format == CodeFormat::nf4 ? nearest_nf4(scaled) : rounded(scaled);
    const VecBytes bytes = __builtin_convertvector(code, VecBytes);
    std::memcpy(codes + i, &bytes, sizeof bytes);
  });
  return down;
}

void pack(std::int8_t* to, const Codes& codes, int bits) {
  if (bits == 8) {
    std::memcpy(to, codes.at, sizeof codes.at);
    return;
  }
  for (std::int64_t i = 0; i < block_numel / 2; ++i)
    to[i] = static_cast<std::int8_t>((codes.at[2 * i] & 15) | codes.at[2 * i + 1] * 16);
}

void unpack(Codes& codes, const std::int8_t* from, int bits) {
  if (bits == 8) {
    std::memcpy(codes.at, from, sizeof codes.at);
    return;
  }
  for (std::int64_t i = 0; i < block_numel / 2; ++i) {
    codes.at[2 * i] = static_cast<std::int8_t>(static_cast<std::int8_t>(from[i] * 16) / 16);
    codes.at[2 * i + 1] = static_cast<std::int8_t>(from[i] >> 4);
  }
}

/// Two levels for each byte of codes.
using LevelPairs = std::array<std::array<float, 2>, 256>;
constexpr LevelPairs level_pairs() {
  LevelPairs pairs{};
  for (std::size_t i = 0; i < pairs.size(); ++i)
    pairs[i] = {nf4_levels[i % 16], nf4_levels[i / 16]};
  return pairs;
}

/// Numbers without their scales.
void decode_nf4(Numbers& numbers, const std::int8_t* from) {
  static constexpr auto pairs = level_pairs();
  for (std::int64_t i = 0; i < block_numel / 2; ++i)
    std::memcpy(numbers.at + 2 * i, pairs[static_cast<std::uint8_t>(from[i])].data(), 8);
}
void decode_integers(Numbers& numbers, const std::int8_t* from, int bits) {
  Codes codes;
  unpack(codes, from, bits);
  for (std::int64_t i = 0; i < block_numel; i += vec_width) {
    VecBytes bytes;
    std::memcpy(&bytes, codes.at + i, sizeof bytes);
    const VecInt integers = __builtin_convertvector(bytes, VecInt);
    store(numbers.at + i, __builtin_convertvector(integers, Vec), Whole{});
  }
}

void decode(Numbers& numbers, const Block& block, CodeFormat format) {
  if (format == CodeFormat::nf4)
    decode_nf4(numbers, block.codes);
  else
    decode_integers(numbers, block.codes, bits_of(format));
  const auto shared = scale_numel(format);
  for (std::int64_t first = 0; first < block_numel; first += shared)
    for (std::int64_t i = first; i < first + shared; i += vec_width)
      store(numbers.at + i, load(numbers.at + i, Whole{}) * block.scales[first / shared], Whole{});
}

/// Adds the sums of squares of the block's errors and numbers.
template <class T>
void add_squares(float* squares, const Numbers& rounded, const T* x, std::int64_t count) {
  Vec errors{}, numbers{};
  for_each_vec(count, [&](std::int64_t i, auto lanes) {
    const Vec v = load(x + i, lanes);
    const Vec error = v - load(rounded.at + i, lanes);
    errors += error * error;
    numbers += v * v;
  });
  squares[0] += sum(errors);
  squares[1] += sum(numbers);
}

/// Blocks that a thread takes at once, so that no two share a sum of squares.
std::int64_t blocks_at_once(std::int64_t blocks) {
  return std::max<std::int64_t>(64,
                                (blocks + BlockCodes::square_sums - 1) / BlockCodes::square_sums);
}

/// Calls visit(block, row) for all blocks, in any order; `row`: of the sums of squares.
template <class Visit>
void for_each(const BlockCodes& q, std::int64_t numel, const Visit& visit) {
  const auto count = q.parts() * BlockCodes::blocks(q.part_numel), at_once = blocks_at_once(count);
  for_each_block(count, at_once, [&](std::int64_t first, std::int64_t last) {
    for (auto index = first; index < last; ++index)
      visit(block_at(q, index, numel), first / at_once);
  });
}

}  // namespace

void quantize_blocks(Stream& stream, const BlockCodes& q, Tensor x, Tensor squares) {
  q.check(x.numel(), squares);
  stream.run([=] {
    with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
      for_each(q, x.numel(), [&](const Block& block, std::int64_t row) {
        Codes codes;
        // Numbers that x lacks count as zeros.
        std::memset(codes.at, q.format == CodeFormat::nf4 ? nf4_zero : 0, sizeof codes.at);
        const auto* from = x.as<T>() + block.first;
        const auto shared = scale_numel(q.format);
        for (std::int64_t i = 0; i < block_numel; i += shared)
          block.scales[i / shared] =
              encode(codes.at + i, from + i, std::clamp(block.count - i, std::int64_t{0}, shared),
                     q.format);
        pack(block.codes, codes, bits_of(q.format));
        if (!squares) return;
        Numbers rounded;
        decode(rounded, block, q.format);
        add_squares(squares.as<float>() + 2 * row, rounded, from, block.count);
      });
    });
  });
}

void dequantize_blocks(Stream& stream, Tensor y, const BlockCodes& q) {
  q.check(y.numel());
  stream.run([=] {
    with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
      for_each(q, y.numel(), [&](const Block& block, std::int64_t /*row*/) {
        Numbers numbers;
        decode(numbers, block, q.format);
        auto* to = y.as<T>() + block.first;
        for_each_vec(block.count, [&](std::int64_t i, auto lanes) {
          store(to + i, load(numbers.at + i, lanes), lanes);
        });
      });
    });
  });
}

void sum_block_parts(Stream& stream, Tensor y, const BlockCodes& q, Accumulate accumulate) {
  q.check(y.numel());
  expects(y.numel() == q.part_numel, "the sum of parts of {} numbers in {}", q.part_numel,
          y.numel());
  stream.run([=] {
    const auto blocks = BlockCodes::blocks(q.part_numel);
    for_each_block(blocks, blocks_at_once(blocks), [&](std::int64_t first, std::int64_t last) {
      for (auto index = first; index < last; ++index) {
        alignas(64) float sums[block_numel] = {};
        Numbers numbers;
        for (std::int64_t part = 0; part < q.parts(); ++part) {
          decode(numbers, block_at(q, part * blocks + index, q.parts() * q.part_numel), q.format);
          for (std::int64_t i = 0; i < block_numel; i += vec_width)
            store(sums + i, load(sums + i, Whole{}) + load(numbers.at + i, Whole{}), Whole{});
        }
        auto* const to = y.as<float>() + index * block_numel;
        const auto count = std::min(block_numel, q.part_numel - index * block_numel);
        for_each_vec(count, [&](std::int64_t i, auto lanes) {
          const Vec sum = load(sums + i, lanes);
          store(to + i, accumulate == Accumulate::yes ? load(to + i, lanes) + sum : sum, lanes);
        });
      }
    });
  });
}

}  // namespace llamesh::ops::cpu
