#include "train/health/expert_balance.hpp"

#include <gtest/gtest.h>

namespace llamesh::train {
namespace {

model::RouterSums sums_of(const std::vector<float>& counts) {
  return {.layers = {2, 5},
          .experts = static_cast<std::int64_t>(counts.size()) / 2,
          .experts_per_tok = 1,
          .tokens = 4,
          .counts = counts,
          .probabilities = {},
          .squares = {}};
}

TEST(IdleExperts, AreNamedOnceUntilTheyGetTokensAgain) {
  IdleExperts idle;
  const auto busy = sums_of({1, 1, 1, 1, 1, 1});
  const auto uneven = sums_of({1, 0, 1, 0, 1, 0});
  for (int step = 1; step < IdleExperts::max_idle_steps; ++step)
    EXPECT_TRUE(idle.observe(uneven).empty()) << step;
  const auto lines = idle.observe(uneven);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0],
            "layer 2: 1 of 3 experts got no token for 100 steps: 1; to balance them, set "
            "model.output_router_logits=true or raise model.router_aux_loss_coef, or with sigmoid "
            "routers model.router_bias_update_rate");
  EXPECT_TRUE(lines[1].starts_with("layer 5: 2 of 3 experts got no token for 100 steps: 0, 2;"))
      << lines[1];
  for (int step = 0; step < 300; ++step) EXPECT_TRUE(idle.observe(uneven).empty());
  EXPECT_TRUE(idle.observe(busy).empty());
  for (int step = 1; step < IdleExperts::max_idle_steps; ++step)
    EXPECT_TRUE(idle.observe(uneven).empty());
  EXPECT_EQ(idle.observe(uneven).size(), 2U);
}

TEST(IdleExperts, OnlyTheFirstOfManyAreNamed) {
  IdleExperts idle;
  std::vector<float> counts(40);
  counts[0] = 4;
  std::vector<std::string> lines;
  for (int step = 0; step < IdleExperts::max_idle_steps; ++step)
    lines = idle.observe(sums_of(counts));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find(": 1, 2, 3, 4, 5, 6, 7, 8 and 11 more;"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace llamesh::train
