#include "train/health/expert_balance.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace llamesh::train {
namespace {

TEST(ExpertBalance, IsRelativeToAnEqualShare) {
  const model::RouterSums sums{.layers = {1, 3},
                               .experts = 4,
                               .experts_per_tok = 2,
                               .tokens = 8,
                               .counts = {8, 4, 4, 0, 4, 4, 4, 4},
                               .probabilities = {2, 2, 2, 2, 2, 2, 2, 2},
                               .squares = {16, 8}};
  const auto balance = expert_balance(sums, true, PerLayer::yes);
  EXPECT_DOUBLE_EQ(balance.all.max_load, 2);
  EXPECT_DOUBLE_EQ(balance.all.min_load, 0);
  EXPECT_DOUBLE_EQ(balance.all.aux_loss, 2) << "k, because all are equally probable";
  EXPECT_DOUBLE_EQ(balance.z_loss.value(), 24.0 / 16);
  ASSERT_EQ(balance.layers.size(), 2U);
  // Shares of 1/2, 1/4 and 1/4: 1.5 log 2 of 2 log 2.
  EXPECT_DOUBLE_EQ(balance.layers.at(1).entropy, 0.75);
  EXPECT_DOUBLE_EQ(balance.layers.at(3).entropy, 1);
  EXPECT_DOUBLE_EQ(balance.all.entropy, 0.875);
  EXPECT_DOUBLE_EQ(balance.layers.at(3).max_load, 1);
  EXPECT_DOUBLE_EQ(balance.layers.at(3).min_load, 1);
  const auto total = expert_balance(sums, false, PerLayer::no);
  EXPECT_FALSE(total.z_loss);
  EXPECT_TRUE(total.layers.empty());
}

}  // namespace
}  // namespace llamesh::train
