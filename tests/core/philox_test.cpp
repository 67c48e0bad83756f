#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace llamesh {
namespace {

using Words = std::array<std::uint32_t, 4>;

std::vector<float> drawn(std::int64_t first, std::int64_t count, std::uint64_t seed,
                         std::string_view name, float stddev = 1.0F) {
  std::vector<float> out(static_cast<std::size_t>(count), std::nanf(""));
  fill_normal(out.data(), first, count, seed, name, stddev);
  return out;
}

/// Known answers from Random123 1.14 (tests/kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  constexpr auto ones = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(ones, ones, ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

/// Known answers for 64-bit FNV-1a.
TEST(NameHash, GivesTheKnownAnswers) {
  EXPECT_EQ(name_hash(""), 0xcbf29ce484222325U);
  EXPECT_EQ(name_hash("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(name_hash("foobar"), 0x85944171f73967e8U);
}

TEST(FillNormal, DoesNotDependOnHowTheRangeIsCut) {
  constexpr std::int64_t count = 1003;
  const auto whole = drawn(0, count, 5, "w");
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> pieces;
    while (static_cast<std::int64_t>(pieces.size()) < count) {
      const auto first = static_cast<std::int64_t>(pieces.size());
      const auto piece = drawn(
          first, std::min<std::int64_t>(static_cast<std::int64_t>(random() % 23), count - first), 5,
          "w");
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    ASSERT_EQ(pieces, whole) << "round " << round;
  }
}

TEST(FillNormal, DrawsElementsFarOut) {
  const std::int64_t far = std::int64_t{5} << 33U;
  const auto here = drawn(far, 64, 5, "w");
  EXPECT_EQ(drawn(far + 13, 3, 5, "w"), std::vector<float>(here.begin() + 13, here.begin() + 16));
  EXPECT_NE(here, drawn(0, 64, 5, "w")) << "the position counts with all its bits";
}

TEST(FillNormal, WritesNothingElse) {
  std::vector<float> out(10, -7.0F);
  fill_normal(out.data() + 3, 2, 5, 1, "w", 1.0F);
  for (const std::size_t i : {0, 1, 2, 8, 9}) EXPECT_EQ(out[i], -7.0F) << i;
  fill_normal(out.data(), 2, 0, 1, "w", 1.0F);
  EXPECT_EQ(out[0], -7.0F);
}

TEST(FillNormal, DiffersBySeedAndByName) {
  const auto numbers = drawn(0, 1000, 5, "layers.0.weight");
  for (const auto& other :
       {drawn(0, 1000, 6, "layers.0.weight"), drawn(0, 1000, 5, "layers.1.weight")}) {
    int equal = 0;
    double product = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      equal += numbers[i] == other[i] ? 1 : 0;
      product += static_cast<double>(numbers[i]) * other[i];
    }
    EXPECT_LE(equal, 1);
    EXPECT_LT(std::abs(product), 5 * std::sqrt(1000.0)) << "the streams are correlated";
  }
}

TEST(FillNormal, ScalesWithTheDeviation) {
  const auto unit = drawn(0, 100, 5, "w");
  const auto scaled = drawn(0, 100, 5, "w", 0.02F);
  for (std::size_t i = 0; i < unit.size(); ++i) EXPECT_FLOAT_EQ(scaled[i], 0.02F * unit[i]);
}

/// Five standard errors each. The values are always the same, so the test cannot fail by chance.
TEST(FillNormal, HasTheMomentsOfANormalDistribution) {
  constexpr std::int64_t count = 200000;
  const double n = count;
  const auto numbers = drawn(0, count, 1, "w");
  double mean = 0;
  double square = 0;
  double cube = 0;
  double fourth = 0;
  double beyond_two = 0;
  for (const double z : numbers) {
    mean += z / n;
    square += z * z / n;
    cube += z * z * z / n;
    fourth += z * z * z * z / n;
    beyond_two += std::abs(z) > 2 ? 1 / n : 0;
  }
  EXPECT_NEAR(mean, 0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(cube, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(fourth, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(beyond_two, std::erfc(std::sqrt(2.0)), 5 * std::sqrt(0.0455 / n));
}

/// A Philox block's four values come from two Box-Muller pairs.
TEST(FillNormal, NeighborsAreIndependent) {
  constexpr std::size_t count = 100000;
  const auto numbers = drawn(0, count, 1, "w");
  for (const std::size_t distance : {1U, 2U, 3U, 4U, 5U}) {
    double product = 0;
    double product_of_squares = 0;
    for (std::size_t i = distance; i < count; ++i) {
      const double a = numbers[i];
      const double b = numbers[i - distance];
      product += a * b / count;
      product_of_squares += (a * a - 1) * (b * b - 1) / count;
    }
    EXPECT_NEAR(product, 0, 5 / std::sqrt(static_cast<double>(count))) << distance;
    EXPECT_NEAR(product_of_squares, 0, 10 / std::sqrt(static_cast<double>(count))) << distance;
  }
}

}  // namespace
}  // namespace llamesh
