#pragma once

#include <cstdint>
#include <type_traits>

#include "core/tensor.hpp"
#include "ops/calls.hpp"
#include "ops/cuda/device_code.cuh"

/// Stochastic rounding to bf16, with the bits of ops/cpu/stochastic_rounding.hpp.
namespace LLAMESH_OPS_CUDA {

/// Returns x rounded up in magnitude if its lower 16 bits and those of `random` add up to more than
/// 16 bits: a value in bf16, or x itself if it is not finite.
__device__ __forceinline__ float round_stochastically(float x, std::uint32_t random) {
  const std::uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffU) >= 0x7f800000U) return x;
  return __uint_as_float((u + (random & 0xffffU)) & 0xffff0000U);
}

/// Rounds a call's moments. Keeps the last Philox block, since neighbors share one.
class Rounder {
 public:
  __device__ __forceinline__ explicit Rounder(const RoundingBits& bits) : bits_(bits) {}

  /// Rounds the moments of the call's element i; leaves them if `Moment` is float.
  template <class Moment>
  __device__ __forceinline__ void round(float& first, float& second, std::int64_t i) {
    if constexpr (!std::is_same_v<Moment, float>) {
      const std::uint32_t random = word(i);
      first = round_stochastically(first, random);
      second = round_stochastically(second, random >> 16U);
    }
  }

 private:
  __device__ __forceinline__ std::uint32_t word(std::int64_t i) {
    const std::int64_t at = bits_.begin + i;
    const std::int64_t row = at < bits_.run ? 0 : at / bits_.run;
    const std::int64_t element = bits_.origin + row * bits_.stride + (at - row * bits_.run);
    if (element / 4 != block_) draw(element / 4);
    const auto w = static_cast<int>(element % 4);
    return w == 0 ? words_[0] : w == 1 ? words_[1] : w == 2 ? words_[2] : words_[3];
  }

  __device__ __forceinline__ void draw(std::int64_t block) {
    block_ = block;
    const auto low = static_cast<std::uint64_t>(block);
    std::uint32_t c[4] = {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32U),
                          static_cast<std::uint32_t>(bits_.stream),
                          static_cast<std::uint32_t>(bits_.stream >> 32U)};
    auto k0 = static_cast<std::uint32_t>(bits_.key);
    auto k1 = static_cast<std::uint32_t>(bits_.key >> 32U);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53U} * c[0];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c[2];
      c[0] = static_cast<std::uint32_t>(b >> 32U) ^ c[1] ^ k0;
      c[1] = static_cast<std::uint32_t>(b);
      c[2] = static_cast<std::uint32_t>(a >> 32U) ^ c[3] ^ k1;
      c[3] = static_cast<std::uint32_t>(a);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) words_[w] = c[w];
  }

  RoundingBits bits_;
  std::int64_t block_ = -1;
  std::uint32_t words_[4] = {};
};

}  // namespace LLAMESH_OPS_CUDA
