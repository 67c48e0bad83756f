#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace llamesh::ops {

/// Bits of fp32's infinity; those of a NaN's magnitude are more.
inline constexpr std::uint32_t infinity_bits = 0x7f800000U;

/// By which a row is multiplied to become e4m3 numbers, and these to become the row.
struct Fp8Scale {
  float up, down;
};

/// Returns the scales of a row (see quantize_rows()) from its largest magnitude as fp32 bits.
constexpr Fp8Scale fp8_scale(std::uint32_t largest) {
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  constexpr auto least = std::bit_cast<std::uint32_t>(1e-12F);
  if (largest >= infinity_bits) return {nan, nan};
  const auto bits = largest < least ? least : largest;
  // 448 = 1.75 * 2^8. A power of two has only an exponent.
  const bool fits = (bits & 0x7fffffU) <= 0x600000U;
  const auto exponent = (bits >> 23U) - (fits ? 8U : 7U);  // of `down`, with bias 127
  return {std::bit_cast<float>((254U - exponent) << 23U), std::bit_cast<float>(exponent << 23U)};
}

}  // namespace llamesh::ops
