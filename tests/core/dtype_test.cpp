#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace llamesh {
namespace {

std::uint16_t rounded(std::uint32_t float_bits) {
  return bf16(std::bit_cast<float>(float_bits)).bits;
}

TEST(Bf16, KeepsWhatItCanHold) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    bf16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(half);
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(static_cast<float>(bf16(value)))) << bits;
    else
      ASSERT_EQ(bf16(value).bits, bits);
  }
}

TEST(Bf16, RoundsToTheNearest) {
  EXPECT_EQ(rounded(0x3f800001), 0x3f80);
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x3f80ffff), 0x3f81);
  EXPECT_EQ(rounded(0xbf808001), 0xbf81);
  EXPECT_EQ(static_cast<float>(bf16(3.14159265F)), 3.140625F);
}

TEST(Bf16, RoundsTiesToEven) {
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);
  EXPECT_EQ(rounded(0x3fff8000), 0x4000) << "the carry goes into the exponent";
  EXPECT_EQ(rounded(0xbf808000), 0xbf80);
  EXPECT_EQ(rounded(0xbf818000), 0xbf82);
}

TEST(Bf16, RoundsSubnormalNumbers) {
  EXPECT_EQ(rounded(0x00008000), 0x0000);
  EXPECT_EQ(rounded(0x00008001), 0x0001);
  EXPECT_EQ(rounded(0x00018000), 0x0002);
  EXPECT_EQ(rounded(0x80000000), 0x8000) << "minus zero";
}

TEST(Bf16, RoundsTheLargestToInfinity) {
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(rounded(0x7f7f7fff), 0x7f7f);
  EXPECT_EQ(rounded(0x7f7f8000), 0x7f80);
}

TEST(Bf16, KeepsInfinity) {
  EXPECT_EQ(bf16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_EQ(bf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

/// Includes NaNs whose payload is in the lower half only, which truncation would turn into
/// infinity, and NaNs that rounding up would carry into the sign.
TEST(Bf16, KeepsNotANumber) {
  for (const std::uint32_t bits : {0x7fc00000U, 0x7f800001U, 0x7fffffffU, 0xffffffffU, 0xff800001U,
                                   0x7f80ffffU, 0xffff8000U}) {
    const bf16 half(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(half))) << std::hex << bits;
    EXPECT_EQ(half.bits >> 15U, bits >> 31U) << std::hex << bits;
  }
}

TEST(DType, HasSizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(name_of(DType::f32), "fp32");
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(name_of(DType::i32), "int32");
  EXPECT_EQ(sizeof(bf16), 2U);
  EXPECT_EQ(dtype_of<float>, DType::f32);
  EXPECT_EQ(dtype_of<bf16>, DType::bf16);
  EXPECT_EQ(dtype_of<std::int32_t>, DType::i32);
}

}  // namespace
}  // namespace llamesh
