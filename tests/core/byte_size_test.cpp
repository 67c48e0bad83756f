#include "core/text.hpp"

#include <gtest/gtest.h>

namespace llamesh {
namespace {

TEST(ByteSize, TakesNumbersAndUnits) {
  EXPECT_EQ(parse_byte_size("0"), 0);
  EXPECT_EQ(parse_byte_size("4096"), 4096);
  EXPECT_EQ(parse_byte_size("1e9"), 1'000'000'000);
  EXPECT_EQ(parse_byte_size("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_byte_size("80 GB"), 80'000'000'000);
  EXPECT_EQ(parse_byte_size("1.5KB"), 1500);
  EXPECT_EQ(parse_byte_size("1.5TiB"), 3 * (std::int64_t{1} << 39));
  EXPECT_EQ(parse_byte_size("512MiB"), 512 << 20);
}

TEST(ByteSize, RefusesOtherText) {
  for (const char* text : {"", "GB", "80Gb", "80G", "-1GB", "1.5B", "nan", "inf", "1e300",
                           "9223372036854775808", "80GB ", "8 0GB"})
    EXPECT_FALSE(parse_byte_size(text)) << text;
}

}  // namespace
}  // namespace llamesh
