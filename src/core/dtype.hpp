#pragma once

#include <bit>
#include <cstdint>
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

enum class DType : std::uint8_t { f32, bf16, i32 };

constexpr std::int64_t size_of(DType t) {
  return t == DType::bf16 ? 2 : 4;
}

constexpr std::string_view name_of(DType t) {
  return t == DType::f32 ? "fp32" : t == DType::bf16 ? "bf16" : "int32";
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
template <class T>
inline constexpr DType dtype_of<const T> = dtype_of<T>;

}  // namespace llamesh
