#include "model/layers/rope_table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace llamesh::model {
namespace {

TEST(Rope, LinearDividesAllFrequencies) {
  Rope rope{.theta = 10000};
  const auto plain = rope_frequencies(rope, 64);
  rope.scaling = RopeScaling{.rope_type = RopeType::linear, .factor = 4};
  const auto scaled = rope_frequencies(rope, 64);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4);
}

TEST(Rope, LongropeDividesByTheLengthOfTheText) {
  Rope rope{.theta = 10000, .dims = 4};
  const auto plain = rope_frequencies(rope, 6);
  rope.scaling = RopeScaling{.rope_type = RopeType::longrope,
                             .factor = 32,
                             .original_max_position_embeddings = 4096,
                             .short_factor = {1, 2},
                             .long_factor = {4, 8}};
  EXPECT_EQ(rope_frequencies(rope, 6, 4096), (std::vector{plain[0], plain[1] / 2, 0.0}));
  EXPECT_EQ(rope_frequencies(rope, 6, 4097), (std::vector{plain[0] / 4, plain[1] / 8, 0.0}));
  EXPECT_DOUBLE_EQ(rope_magnitude(rope), std::sqrt(1 + std::log(32.0) / std::log(4096.0)));
  rope.scaling->factor = 1;
  EXPECT_EQ(rope_magnitude(rope), 1);
}

/// InternLM3's: the base is 5e7 up to the original context.
TEST(Rope, DynamicGrowsTheBaseWithTheText) {
  Rope rope{.theta = 5e7};
  const auto plain = rope_frequencies(rope, 128);
  rope.scaling = RopeScaling{
      .rope_type = RopeType::dynamic, .factor = 6, .original_max_position_embeddings = 32768};
  EXPECT_EQ(rope_frequencies(rope, 128, 32768), plain);
  const auto base = 5e7 * std::pow(6.0 * 2 - (6 - 1), 128.0 / 126);
  const auto grown = rope_frequencies(rope, 128, 65536);
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_DOUBLE_EQ(grown[i], std::pow(base, -2.0 * static_cast<double>(i) / 128)) << i;
  EXPECT_EQ(rope_magnitude(rope), 1);
}

/// Only queries behind the original context grow.
TEST(Rope, QueriesGrowWithTheirPosition) {
  Rope rope{.theta = 10000};
  rope.scaling = RopeScaling{.rope_type = RopeType::yarn,
                             .factor = 4,
                             .original_max_position_embeddings = 4,
                             .llama_4_scaling_beta = 0.5};
  std::vector<float> queries(36), keys(36);  // 9 positions
  rope_table(rope, 4, queries, RopeSide::queries);
  rope_table(rope, 4, keys, RopeSide::keys);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const auto contexts = i / 16;
    const auto scale = 1 + 0.5 * std::log(1 + static_cast<double>(contexts));
    EXPECT_NEAR(queries[i], keys[i] * scale, 1e-6) << i;
  }
}

/// Qwen 2.5's long-context setting: pairs 0 to 23 keep their frequencies and those from 40 on are
/// divided.
TEST(Rope, YarnBlendsByRotations) {
  Rope rope{.theta = 1e6};
  const auto plain = rope_frequencies(rope, 128);
  rope.scaling = RopeScaling{
      .rope_type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 32768};
  const auto scaled = rope_frequencies(rope, 128);
  // dim ln(context / (2 pi rotations)) / (2 ln theta): 23.6 and 39.6 for 32 rotations and for 1.
  for (std::size_t i = 0; i <= 23; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i]) << i;
  for (std::size_t i = 24; i < 40; ++i) {
    EXPECT_LT(scaled[i], plain[i]) << i;
    EXPECT_GT(scaled[i], plain[i] / 4) << i;
  }
  for (std::size_t i = 40; i < 64; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4) << i;
  EXPECT_DOUBLE_EQ(rope_magnitude(rope), 0.1 * std::log(4.0) + 1);
  rope.scaling->attention_factor = 1.5;
  EXPECT_EQ(rope_magnitude(rope), 1.5);
}

}  // namespace
}  // namespace llamesh::model
