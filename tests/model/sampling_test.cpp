#include "model/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "support.hpp"

namespace llamesh::model {
namespace {

const std::vector<float> logits{1.0F, 3.0F, 2.0F, 3.0F, -1.0F};

/// Returns each id's frequency in n choices.
std::map<std::int32_t, double> shares(const SamplingOptions& options, int n = 20000) {
  TokenSampler sampler(options);
  std::map<std::int32_t, double> shares;
  for (int i = 0; i < n; ++i) shares[sampler.choose(logits)] += 1.0 / n;
  return shares;
}

TEST(TokenSampler, TakesTheLikeliestAtTemperatureZero) {
  TokenSampler sampler({.temperature = 0});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sampler.choose(logits), 1);  // the lower id among equals
}

TEST(TokenSampler, FollowsTheSoftmaxOfItsTemperature) {
  for (const double temperature : {0.5, 1.0, 3.0}) {
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    const auto got = shares({.temperature = temperature, .seed = 3});
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto found = got.find(static_cast<std::int32_t>(i));
      EXPECT_NEAR(found == got.end() ? 0 : found->second, std::exp(logits[i] / temperature) / total,
                  0.015)
          << "id " << i << " at " << temperature;
    }
  }
}

TEST(TokenSampler, LeavesOutWhatIsNotAmongTheTopK) {
  std::set<std::int32_t> seen;
  for (const auto& [id, share] : shares({.temperature = 5, .top_k = 3})) seen.insert(id);
  EXPECT_EQ(seen, (std::set<std::int32_t>{1, 2, 3}));
}

TEST(TokenSampler, LeavesOutWhatIsBeyondTopP) {
  // Probabilities at temperature 1: 0.40, 0.40, 0.15, 0.05, 0.007.
  std::set<std::int32_t> seen;
  for (const auto& [id, share] : shares({.temperature = 1, .top_p = 0.7})) seen.insert(id);
  EXPECT_EQ(seen, (std::set<std::int32_t>{1, 3}));
  const auto one = shares({.temperature = 1, .top_p = 0.001});
  EXPECT_EQ(one.size(), 1U);
  EXPECT_EQ(one.begin()->first, 1);
}

TEST(TokenSampler, ChoosesTheSameAgainFromTheSameSeed) {
  const auto choices = [](std::uint64_t seed) {
    TokenSampler sampler({.temperature = 1, .seed = seed});
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.choose(logits));
    return ids;
  };
  EXPECT_EQ(choices(1), choices(1));
  EXPECT_NE(choices(1), choices(2));
}

TEST(TokenSampler, RefusesOptionsOutOfRange) {
  EXPECT_NE(test::error_of([] { TokenSampler({.temperature = -1}); }).find("-1"),
            std::string::npos);
  EXPECT_NE(test::error_of([] { TokenSampler({.top_k = -2}); }).find("-2"), std::string::npos);
  EXPECT_NE(test::error_of([] { TokenSampler({.top_p = 1.5}); }).find("1.5"), std::string::npos);
  EXPECT_NE(test::error_of([] { TokenSampler({.top_p = 0}); }).find("top-p"), std::string::npos);
}

}  // namespace
}  // namespace llamesh::model
