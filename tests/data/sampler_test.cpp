#include "data/sampler.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support.hpp"

namespace llamesh::data {
namespace {

std::vector<std::int64_t> epoch_of(std::int64_t count, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i) order.push_back(permuted(i, count, seed, epoch));
  return order;
}

TEST(Sampler, CountsWholeSequencesWithTheirShiftedTargets) {
  EXPECT_EQ(whole_sequences(0, 4), 0);
  EXPECT_EQ(whole_sequences(4, 4), 0);
  EXPECT_EQ(whole_sequences(5, 4), 1);
  EXPECT_EQ(whole_sequences(8, 4), 1);
  EXPECT_EQ(whole_sequences(9, 4), 2);
}

TEST(Sampler, EveryEpochIsAPermutation) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 16, 17, 255, 1000, 4097}) {
    for (const std::int64_t epoch : {0, 1, 7}) {
      std::vector<int> seen(static_cast<std::size_t>(count));
      for (const std::int64_t i : epoch_of(count, 42, epoch)) {
        ASSERT_GE(i, 0);
        ASSERT_LT(i, count);
        ++seen[static_cast<std::size_t>(i)];
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << count << " epoch " << epoch;
    }
  }
}

TEST(Sampler, SeedAndEpochChangeTheOrder) {
  EXPECT_EQ(epoch_of(100, 1, 0), epoch_of(100, 1, 0));
  EXPECT_NE(epoch_of(100, 1, 0), epoch_of(100, 1, 1));
  EXPECT_NE(epoch_of(100, 1, 0), epoch_of(100, 2, 0));
  std::vector<std::int64_t> plain(100);
  std::iota(plain.begin(), plain.end(), 0);
  EXPECT_NE(epoch_of(100, 1, 0), plain);
}

// Over all seeds, each place must see each element about equally often: chi-square with 6 degrees
// of freedom is below 33 except for one case in 100,000.
TEST(Sampler, SmallPermutationsAreUniform) {
  constexpr std::size_t count = 7;
  constexpr int trials = 7000;
  std::vector<std::vector<int>> hits(count, std::vector<int>(count));
  for (std::uint64_t seed = 0; seed < trials; ++seed)
    for (std::size_t i = 0; i < count; ++i)
      ++hits[i][static_cast<std::size_t>(permuted(static_cast<std::int64_t>(i), count, seed, 3))];
  for (std::size_t i = 0; i < count; ++i) {
    double chi_square = 0;
    for (const int n : hits[i]) chi_square += (n - 1000.0) * (n - 1000.0) / 1000.0;
    EXPECT_LT(chi_square, 33) << "place " << i;
  }
}

TEST(Sampler, HugeDomainsStayInRange) {
  const std::int64_t count = (std::int64_t{1} << 60) + 12345;
  for (std::int64_t i = 0; i < 100; ++i) {
    const std::int64_t at = permuted(count - 1 - i, count, 5, i);
    EXPECT_GE(at, 0);
    EXPECT_LT(at, count);
  }
}

Sampler sampler_of(const std::vector<Share>& shares, Order order = Order::shuffled,
                   std::uint64_t seed = 1) {
  return {shares, order, seed};
}

TEST(Sampler, SequentialWrapsAndShuffledChangesByEpoch) {
  const Sampler sequential = sampler_of({{10}}, Order::sequential);
  EXPECT_EQ(sequential.sequence_at(0), (SourceSequence{0, 0}));
  EXPECT_EQ(sequential.sequence_at(9), (SourceSequence{0, 9}));
  EXPECT_EQ(sequential.sequence_at(23), (SourceSequence{0, 3}));
  const Sampler shuffled = sampler_of({{10}});
  for (std::int64_t p = 0; p < 30; ++p)
    EXPECT_EQ(shuffled.sequence_at(p), (SourceSequence{0, permuted(p % 10, 10, 1, p / 10)}));
}

/// Counts how often positions [begin, end) show each sequence in a source.
std::vector<int> shown(const Sampler& sampler, std::size_t source, std::int64_t sequences,
                       std::int64_t begin, std::int64_t end) {
  std::vector<int> counts(static_cast<std::size_t>(sequences));
  for (std::int64_t p = begin; p < end; ++p)
    if (const SourceSequence at = sampler.sequence_at(p); at.source == source)
      ++counts.at(static_cast<std::size_t>(at.sequence));
  return counts;
}

TEST(Sampler, WeightsSayHowOftenAnEpochShowsASequence) {
  for (const Order order : {Order::shuffled, Order::sequential}) {
    for (const std::uint64_t seed : {1U, 77U}) {
      const Sampler sampler = sampler_of({{23}, {40, 0.5}, {7, 3}, {10, 1.3}}, order, seed);
      EXPECT_EQ(sampler.epoch_length(), 23 + 20 + 21 + 13);
      const std::int64_t length = sampler.epoch_length();
      for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
        const auto counts = [&](std::size_t source, std::int64_t n, std::int64_t epochs) {
          return shown(sampler, source, n, epoch * length, (epoch + epochs) * length);
        };
        EXPECT_EQ(counts(0, 23, 1), std::vector<int>(23, 1)) << "epoch " << epoch;
        EXPECT_EQ(counts(2, 7, 1), std::vector<int>(7, 3)) << "epoch " << epoch;
        const auto half = counts(1, 40, 1);
        EXPECT_EQ(std::accumulate(half.begin(), half.end(), 0), 20) << "epoch " << epoch;
        if (epoch % 2 == 0) {
          EXPECT_EQ(counts(1, 40, 2), std::vector<int>(40, 1)) << "epochs from " << epoch;
        }
        const auto more = counts(3, 10, 1);
        EXPECT_EQ(std::accumulate(more.begin(), more.end(), 0), 13) << "epoch " << epoch;
      }
      EXPECT_EQ(shown(sampler, 3, 10, 0, 10 * length), std::vector<int>(10, 13));
    }
  }
}

/// Counting over two epochs alone would miss a bug that shows the same half in every epoch.
TEST(Sampler, EveryPassOverASourceHasAnOrderOfItsOwn) {
  const Sampler sampler = sampler_of({{1000, 0.5}, {1000, 0.5}, {500}});
  const std::int64_t length = sampler.epoch_length();
  EXPECT_NE(shown(sampler, 0, 1000, 0, length), shown(sampler, 0, 1000, 2 * length, 3 * length));
  EXPECT_NE(shown(sampler, 0, 1000, 0, length), shown(sampler, 1, 1000, 0, length));
}

TEST(Sampler, SourcesAreMixedOrOneAfterAnother) {
  const std::vector<Share> shares = {{300}, {300, 2}};
  const Sampler sequential = sampler_of(shares, Order::sequential);
  const Sampler shuffled = sampler_of(shares);
  int early = 0;
  for (std::int64_t p = 0; p < 900; ++p) {
    EXPECT_EQ(sequential.sequence_at(p), (SourceSequence{p < 300 ? 0U : 1U, p % 300}));
    early += p < 450 && shuffled.sequence_at(p).source == 0 ? 1 : 0;
  }
  EXPECT_NEAR(early, 150, 40);  // five standard deviations
}

TEST(Sampler, RefusesWeightsThatShowNothingOrTooMuch) {
  EXPECT_EQ(sampler_of({{5, 0.1}}).epoch_length(), 1);  // a half is rounded up
  EXPECT_NE(test::error_of([] {
              sampler_of({{9}, {4, 0.1}});
            }).find("data.train[1]: with weight 0.1 an epoch shows none of its 4 sequences"),
            std::string::npos);
  const std::int64_t many = std::int64_t{1} << 45;
  EXPECT_NE(test::error_of([&] {
              sampler_of({{many, 1000}});
            }).find("lower the weight"),
            std::string::npos);
}

}  // namespace
}  // namespace llamesh::data
