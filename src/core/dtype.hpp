#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>

#include "core/enum_names.hpp"

namespace llamesh {

/// bfloat16: the upper half of an IEEE binary32. Arithmetic is done in float.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  /// Rounds to nearest even; NaN stays NaN.
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<std::uint16_t>(nan ? (u >> 16U) | 0x40U
                                          : (u + 0x7fffU + ((u >> 16U) & 1U)) >> 16U);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
};

/// FP8 with 4 exponent bits of bias 7 and 3 mantissa bits: multiples of 2^-9 up to 448, no infinity
/// (Micikevicius et al. 2022).
struct e4m3 {
  std::uint8_t bits = 0;

  constexpr explicit operator float() const {
    const auto magnitude = std::uint32_t{bits} & 0x7fU;
    if (magnitude == 0x7fU) return std::numeric_limits<float>::quiet_NaN();
    // The exponent moves from bias 7 to 127; a subnormal has none.
    const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9F
                                      : std::bit_cast<float>((magnitude << 20U) + (120U << 23U));
    return bits < 128 ? value : -value;
  }
};

enum class DType : std::uint8_t { f32, bf16, i32, e4m3, i8 };

constexpr std::int64_t size_of(DType t) {
  return t == DType::e4m3 || t == DType::i8 ? 1 : t == DType::bf16 ? 2 : 4;
}

constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "int32";
    case DType::e4m3:
      return "fp8";
    case DType::i8:
      return "int8";
  }
  return "?";
}
/// Names of the dtypes that inputs may choose.
inline EnumNames<DType> enum_names(DType) {
  return {{{name_of(DType::f32), DType::f32}, {name_of(DType::bf16), DType::bf16}}};
}

template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<e4m3> = DType::e4m3;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::i8;
template <class T>
inline constexpr DType dtype_of<const T> = dtype_of<T>;

}  // namespace llamesh
