#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/models/safetensors.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"

namespace llamesh::checkpoint {
namespace {

/// Converts IEEE 754 binary16 to binary32, without branches so that the loop vectorizes.
float half_to_float(std::uint16_t half) {
  const auto sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  const auto magnitude = static_cast<std::uint32_t>(half & 0x7fffU);
  const auto normal = (magnitude << 13U) + (112U << 23U);  // exponent bias 127 - 15
  const auto special = (magnitude << 13U) | 0x7f800000U;   // infinity and NaN
  const auto tiny = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  const auto bits = magnitude >= 0x7c00U ? special : magnitude >= 0x0400U ? normal : tiny;
  return std::bit_cast<float>(bits | sign);
}

/// Converts binary32 to binary16, to nearest even; overflow becomes infinity.
std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = (bits >> 16U) & 0x8000U;
  const auto magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | ((magnitude >> 13U) & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // from 65520 on
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // from 2^-14 on: normal
    half = (magnitude - (112U << 23U) + 0xfffU + ((magnitude >> 13U) & 1U)) >> 13U;
  } else {
    // The sum's last bit is worth 2^-24, like a subnormal half's last bit, so the addition rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  }
  return static_cast<std::uint16_t>(half | sign);
}

template <class Convert>
void widen(const std::uint8_t* from, std::span<float> values, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    values[i] = convert(bits);
  }
}

template <class Convert>
void narrow(std::span<const float> values, std::uint8_t* to, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = convert(values[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

}  // namespace

std::string_view name_of(StoredType type) {
  switch (type) {
    case StoredType::f32:
      return "F32";
    case StoredType::bf16:
      return "BF16";
    case StoredType::f16:
      return "F16";
    case StoredType::f64:
      return "F64";
    case StoredType::f8_e4m3:
      return "F8_E4M3";
  }
  return "";
}

std::optional<StoredType> stored_type(std::string_view name) {
  for (const auto type :
       {StoredType::f32, StoredType::bf16, StoredType::f16, StoredType::f64, StoredType::f8_e4m3})
    if (name_of(type) == name) return type;
  return std::nullopt;
}

void to_floats(StoredType type, const std::uint8_t* from, std::span<float> values) {
  switch (type) {
    case StoredType::f32:
      if (!values.empty()) std::memcpy(values.data(), from, values.size_bytes());
      return;
    case StoredType::bf16:
      return widen(from, values, [](std::uint16_t bits) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
      });
    case StoredType::f16:
      return widen(from, values, half_to_float);
    case StoredType::f64:
      for (std::size_t i = 0; i < values.size(); ++i) {
        double wide = 0;
        std::memcpy(&wide, from + sizeof(wide) * i, sizeof(wide));
        values[i] = static_cast<float>(wide);
      }
      return;
    case StoredType::f8_e4m3:
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(e4m3{from[i]});
      return;
  }
}

void from_mxfp4(const std::uint8_t* blocks, const std::uint8_t* scales, std::span<float> values) {
  constexpr std::array<float, 16> numbers = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                             -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  for (std::size_t i = 0; i < values.size(); i += mxfp4_block) {
    const auto scale = scales[i / mxfp4_block];
    const float factor = scale == 255 ? std::numeric_limits<float>::quiet_NaN()
                                      : std::ldexp(1.0F, static_cast<int>(scale) - 127);
    for (std::size_t j = i; j < i + mxfp4_block; ++j)
      values[j] = factor * numbers[blocks[j / 2] >> (j % 2 * 4U) & 15U];
  }
}

std::int64_t from_floats(StoredType type, std::span<const float> values, std::uint8_t* to) {
  switch (type) {
    case StoredType::f32:
      if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
      return 0;
    case StoredType::bf16:
      narrow(values, to, [](float value) { return bf16(value).bits; });
      break;
    case StoredType::f16:
      narrow(values, to, float_to_half);
      break;
    case StoredType::f64:
    case StoredType::f8_e4m3:
      expects(false, "nothing is written in {}", name_of(type));
  }
  // The smallest finite number that rounds to infinity: half a unit above the type's largest.
  const float limit = type == StoredType::f16 ? 65520.0F : 0x1.ffp127F;
  std::int64_t lost = 0;
  for (const float value : values) lost += std::isfinite(value) && std::abs(value) >= limit ? 1 : 0;
  return lost;
}

}  // namespace llamesh::checkpoint
