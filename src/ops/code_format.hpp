#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace llamesh::ops {

/// Formats of codes that stand for numbers: each number is a code times a scale, which neighbors
/// share.
enum class CodeFormat : std::uint8_t {
  int8,        ///< -127 to 127; 256 numbers share a scale
  int4,        ///< -7 to 7, the first one in the low half of a byte; likewise
  int8_by_64,  ///< -127 to 127; 64 numbers share a scale
  nf4,         ///< an index into nf4_levels, the first one in the low half; likewise
};

constexpr std::string_view name_of(CodeFormat format) {
  switch (format) {
    case CodeFormat::int8:
    case CodeFormat::int8_by_64:
      return "int8";
    case CodeFormat::int4:
      return "int4";
    case CodeFormat::nf4:
      return "nf4";
  }
  return "";
}
constexpr int bits_of(CodeFormat format) {
  return format == CodeFormat::int8 || format == CodeFormat::int8_by_64 ? 8 : 4;
}
/// Returns how many numbers share a scale.
constexpr std::int64_t scale_numel(CodeFormat format) {
  return format == CodeFormat::int8 || format == CodeFormat::int4 ? 256 : 64;
}
/// Returns the code that stands for the largest magnitude among them.
constexpr float largest_code(CodeFormat format) {
  if (format == CodeFormat::nf4) return 1;
  return bits_of(format) == 8 ? 127 : 7;
}

/// NormalFloat of 4 bits: quantiles of a normal distribution, with 0 and both ends (Dettmers et al.
/// 2023, appendix E).
inline constexpr std::array<float, 16> nf4_levels = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};
inline constexpr std::int8_t nf4_zero = 7;  ///< the code of 0
/// Returns the border between levels i and i + 1: their middle, which belongs to the lower one.
constexpr float nf4_border(std::size_t i) {
  return (nf4_levels[i] + nf4_levels[i + 1]) / 2;
}

}  // namespace llamesh::ops
