#pragma once

#include <algorithm>
#include <cstdint>

#include "core/philox.hpp"
#include "ops/calls.hpp"
#include "ops/cpu/vec.hpp"

/// Stochastic rounding to bf16: a value between two neighbors a < x < b becomes b with probability
/// (x - a) / (b - a), so that its mean is x. Small steps then add up, which rounding to nearest
/// would lose.
namespace llamesh::ops::cpu {

/// Stores x, rounded up in magnitude if the lower 16 bits of its binary32 and those of `random` add
/// up to more than 16 bits. Infinities and NaNs stay what they are.
inline void store_rounded(bf16* to, Vec x, VecBits random, Whole /*lanes*/) {
  const auto u = std::bit_cast<VecBits>(x);
  const VecBits magnitude = u & 0x7fffffffU;
  const VecBits rounded = (u + (random & 0xffffU)) >> 16U;
  const VecBits quiet = (u >> 16U) | (magnitude > 0x7f800000U ? VecBits{} + 0x40U : VecBits{});
  const VecBits bits = magnitude >= 0x7f800000U ? quiet : rounded;
  const VecHalves halves = __builtin_convertvector(bits, VecHalves);
  std::memcpy(static_cast<void*>(to), &halves, sizeof halves);
}
inline void store_rounded(bf16* to, Vec x, VecBits random, Part lanes) {
  bf16 whole[vec_width];
  store_rounded(whole, x, random, Whole{});
  std::memcpy(static_cast<void*>(to), whole, static_cast<std::size_t>(lanes.count) * sizeof(bf16));
}

/// Vectors with as many 64-bit lanes.
using VecLong [[gnu::vector_size(vec_width * 4)]] = std::uint64_t;

/// Returns the products of the lower halves of 64-bit lanes by `factor`.
inline VecLong wide_product(VecLong a, std::uint32_t factor) {
#if defined(__AVX512F__)
  return std::bit_cast<VecLong>(_mm512_maskz_mul_epu32(
      0xff, std::bit_cast<__m512i>(a), _mm512_set1_epi32(std::bit_cast<int>(factor))));
#elif defined(__AVX2__)
  return std::bit_cast<VecLong>(
      _mm256_mul_epu32(std::bit_cast<__m256i>(a), _mm256_set1_epi32(std::bit_cast<int>(factor))));
#else
  return (a & 0xffffffffU) * factor;
#endif
}

/// Sets the upper and lower 32 bits of each lane's product with `factor`.
inline void multiply(VecBits a, std::uint32_t factor, VecBits& high, VecBits& low) {
  const auto lanes = std::bit_cast<VecLong>(a);
  const VecLong even = wide_product(lanes, factor);
  const VecLong odd = wide_product(lanes >> 32U, factor);
  constexpr std::uint64_t upper = 0xffffffff00000000U;
  high = std::bit_cast<VecBits>((even >> 32U) | (odd & upper));
  low = std::bit_cast<VecBits>((even & ~upper) | (odd << 32U));
}

/// philox() for counters (stream, block) to (stream, block + vec_width - 1): writes their words in
/// order, 4 vec_width of them.
inline void philox_blocks(std::uint32_t* words, std::uint64_t key, std::uint64_t stream,
                          std::uint64_t block) {
  VecBits c[4];
  for (std::int64_t lane = 0; lane < vec_width; ++lane) {
    const auto counter = block + static_cast<std::uint64_t>(lane);
    c[0][lane] = static_cast<std::uint32_t>(counter);
    c[1][lane] = static_cast<std::uint32_t>(counter >> 32U);
  }
  c[2] = VecBits{} + static_cast<std::uint32_t>(stream);
  c[3] = VecBits{} + static_cast<std::uint32_t>(stream >> 32U);
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    VecBits high_a, low_a, high_b, low_b;
    multiply(c[0], 0xD2511F53U, high_a, low_a);
    multiply(c[2], 0xCD9E8D57U, high_b, low_b);
    c[0] = high_b ^ c[1] ^ k0;
    c[1] = low_b;
    c[2] = high_a ^ c[3] ^ k1;
    c[3] = low_a;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (std::int64_t lane = 0; lane < vec_width; ++lane)
    for (int word = 0; word < 4; ++word) words[4 * lane + word] = c[word][lane];
}

/// Writes the words of elements [element, element + count) in the whole parameter.
inline void fill_words(std::uint32_t* words, const RoundingBits& bits, std::int64_t element,
                       std::int64_t count) {
  constexpr std::int64_t batch = 4 * vec_width;
  std::uint32_t some[batch];
  for (const auto last = element + count; element < last;) {
    const auto skipped = element % 4;
    const auto taken = std::min(batch - skipped, last - element);
    philox_blocks(some, bits.key, bits.stream, static_cast<std::uint64_t>(element / 4));
    std::copy_n(some + skipped, taken, words);
    words += taken;
    element += taken;
  }
}

/// Writes the words of a call's elements [first, last).
inline void fill_words_of_call(std::uint32_t* words, const RoundingBits& bits, std::int64_t first,
                               std::int64_t last) {
  while (first < last) {
    const auto at = bits.begin + first;
    const auto in_run = at % bits.run;
    const auto count = std::min(bits.run - in_run, last - first);
    fill_words(words, bits, bits.origin + at / bits.run * bits.stride + in_run, count);
    words += count;
    first += count;
  }
}

}  // namespace llamesh::ops::cpu
