#include "data/sampler.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

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

// Each place must see each element about equally often over seeds: chi-square with 6 degrees of
// freedom is below 33 but for one case in 100,000.
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

TEST(Sampler, SequentialWrapsAndShuffledChangesByEpoch) {
  const Sampler sequential(10, Order::sequential, 1);
  EXPECT_EQ(sequential.sequence_of(0), 0);
  EXPECT_EQ(sequential.sequence_of(9), 9);
  EXPECT_EQ(sequential.sequence_of(23), 3);
  const Sampler shuffled(10, Order::shuffled, 1);
  for (std::int64_t p = 0; p < 30; ++p)
    EXPECT_EQ(shuffled.sequence_of(p), permuted(p % 10, 10, 1, p / 10));
}

}  // namespace
}  // namespace llamesh::data
