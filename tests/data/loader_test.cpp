#include "data/loader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "data/validation.hpp"
#include "files.hpp"

namespace llamesh::data {
namespace {

using test::TemporaryFolder;

std::string random_text(std::size_t size) {
  std::mt19937 random(11);
  std::string text(size, ' ');
  for (char& c : text) c = static_cast<char>(random() & 255U);
  return text;
}

/// A random text as a stream.
struct Text {
  explicit Text(std::size_t size)
      : bytes(random_text(size)),
        files{folder.write("text", bytes)},
        stream(DataOptions{}, files, 256) {}
  std::int32_t at(std::int64_t i) const {
    return static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
  }
  TrainingData data(std::int64_t length, Order order) const {
    DataOptions options;
    options.train = files;
    options.sequence_length = length;
    options.order = order;
    return {options, 256};
  }
  TemporaryFolder folder;
  std::string bytes;
  std::vector<std::string> files;
  TokenStream stream;
};

BatchPartition deal(std::int64_t length, std::int64_t micro, std::int64_t global, int rank,
                    int ranks) {
  return {.sequence_length = length,
          .micro_batch = micro,
          .global_batch = global,
          .rank = rank,
          .ranks = ranks};
}

TEST(Loader, DealsTheGlobalBatchWhateverTheRanks) {
  const Text text(1000);  // 99 sequences with 10 tokens: the third step crosses into the next epoch
  for (const Order order : {Order::sequential, Order::shuffled}) {
    const std::vector<Share> shares = {{99}};
    const Sampler sampler(shares, order, 5);
    const TrainingData data = text.data(10, order);
    for (const auto& [ranks, micro] : {std::pair{1, 12}, {1, 1}, {2, 3}, {3, 2}, {4, 1}, {6, 2}}) {
      for (int rank = 0; rank < ranks; ++rank) {
        Loader loader(data, deal(10, micro, 36, rank, ranks), 5, 0);
        EXPECT_EQ(loader.epoch_length(), 99);
        for (std::int64_t step = 0; step < 4; ++step)
          for (std::int64_t a = 0; a < 36 / (ranks * micro); ++a) {
            const TokenBatch& batch = loader.next();
            ASSERT_EQ(batch.tokens.size(), static_cast<std::size_t>(micro * 10));
            for (std::int64_t i = 0; i < std::int64_t{micro} * 10; ++i) {
              const std::int64_t p = step * 36 + (a * ranks + rank) * micro + i / 10;
              const std::int64_t token = sampler.sequence_at(p).sequence * 10 + i % 10;
              ASSERT_EQ(batch.tokens[static_cast<std::size_t>(i)], text.at(token));
              ASSERT_EQ(batch.targets[static_cast<std::size_t>(i)], text.at(token + 1));
            }
          }
      }
    }
  }
}

/// For ranks whose gradients are summed before those of their micro-batches.
TEST(BatchPartition, GivesNeighboringRanksNeighboringSequences) {
  const auto firsts = [](int rank, int neighbors) {
    auto partition = deal(8, 2, 16, rank, 4);
    partition.neighbors = neighbors;
    return std::pair(partition.first_sequence(0), partition.first_sequence(1));
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  const std::vector<std::pair<int, std::vector<Pair>>> expected = {
      {0, {{0, 8}, {2, 10}, {4, 12}, {6, 14}}},
      {4, {{0, 8}, {2, 10}, {4, 12}, {6, 14}}},
      {2, {{0, 4}, {2, 6}, {8, 12}, {10, 14}}},
      {1, {{0, 2}, {4, 6}, {8, 10}, {12, 14}}}};
  for (const auto& [neighbors, of_rank] : expected)
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(firsts(rank, neighbors), of_rank[static_cast<std::size_t>(rank)])
          << "rank " << rank << ", " << neighbors << " neighbors";
}

TEST(Loader, ResumesAtAnyStep) {
  const Text text(2000);
  const BatchPartition partition = deal(8, 2, 8, 1, 2);  // two micro-batches per step
  const TrainingData data = text.data(8, Order::shuffled);
  Loader whole(data, partition, 9, 0);
  for (std::int64_t step = 0; step < 40; ++step) {
    Loader resumed(data, partition, 9, step);
    for (int a = 0; a < 2; ++a) {
      const TokenBatch& expected = whole.next();
      const TokenBatch& batch = resumed.next();
      ASSERT_EQ(batch.tokens, expected.tokens) << "step " << step;
      ASSERT_EQ(batch.targets, expected.targets) << "step " << step;
    }
  }
}

TEST(Loader, KeepsTheBatchInUseUntouched) {
  const Text text(500);
  const TrainingData data = text.data(4, Order::sequential);
  Loader loader(data, deal(4, 1, 1, 0, 1), 0, 0);
  for (int i = 0; i < 20; ++i) {
    const TokenBatch& batch = loader.next();
    const TokenBatch copy = batch;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // time for the thread to fill ahead
    EXPECT_EQ(batch.tokens, copy.tokens);
  }
}

TEST(Loader, ReadErrorsComeOutOfNext) {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> ids(41, 5);
  ids[33] = 300;
  DataOptions options;
  options.train = {folder.write("ids", test::bytes_of(ids))};
  options.sequence_length = 10;
  options.order = Order::sequential;
  options.format = Format::tokens;
  options.token_dtype = TokenDtype::uint16;
  const TrainingData data(options, 256);
  Loader loader(data, deal(10, 1, 1, 0, 1), 0, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(loader.next().tokens, std::vector<std::int32_t>(10, 5));
  EXPECT_ERROR(loader.next(), "token 33 of");
  EXPECT_ERROR(loader.next(), "has id 300");  // again, not a hang
}

TEST(Loader, RefusesATextShorterThanASequence) {
  const Text text(10);
  EXPECT_ERROR(text.data(10, Order::shuffled),
               "has 10 tokens, but one sequence needs 11 (data.sequence_length + 1)");
  const TrainingData data = text.data(9, Order::shuffled);
  Loader fits(data, deal(9, 1, 1, 0, 1), 1, 1000);
  EXPECT_EQ(fits.next().targets.back(), text.at(9));
}

TEST(ValidationData, CoversEveryPredictionOnce) {
  for (const std::size_t size : {2, 11, 12, 101, 137}) {
    const Text text(size);
    for (const int ranks : {1, 2, 3}) {
      std::multiset<std::pair<std::int32_t, std::int32_t>> seen;
      std::multiset<std::pair<std::int32_t, std::int32_t>> expected;
      for (std::int64_t i = 0; i + 1 < static_cast<std::int64_t>(size); ++i)
        expected.emplace(text.at(i), text.at(i + 1));
      std::int64_t batches = -1;
      for (int rank = 0; rank < ranks; ++rank) {
        const ValidationData data(text.stream, deal(10, 2, 0, rank, ranks), 0);
        if (rank > 0) {
          EXPECT_EQ(data.batches(), batches);
        }
        batches = data.batches();
        TokenBatch batch(2, 10);
        for (std::int64_t k = 0; k < batches; ++k) {
          data.read(k, batch);
          for (std::size_t i = 0; i < 20; ++i)
            if (batch.targets[i] != ignored_target) seen.emplace(batch.tokens[i], batch.targets[i]);
        }
      }
      EXPECT_EQ(seen, expected) << size << " tokens, " << ranks << " ranks";
    }
  }
}

TEST(ValidationData, ReadsTheSameSequencesOnAnyMesh) {
  const Text text(1001);
  const auto targets = [&](std::int64_t micro, int ranks, std::int64_t limit) {
    std::vector<std::int32_t> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const ValidationData data(text.stream, deal(10, micro, 0, rank, ranks), limit);
      TokenBatch batch(micro, 10);
      for (std::int64_t k = 0; k < data.batches(); ++k) {
        data.read(k, batch);
        for (const auto target : batch.targets)
          if (target != ignored_target) all.push_back(target);
      }
    }
    std::ranges::sort(all);
    return all;
  };
  for (const std::int64_t limit : {1, 7, 99, 100, 101}) {
    const auto alone = targets(1, 1, limit);
    EXPECT_EQ(std::ssize(alone), std::min<std::int64_t>(limit, 100) * 10);
    for (const auto& [micro, ranks] : {std::pair{4, 1}, {1, 3}, {3, 4}, {2, 8}})
      EXPECT_EQ(targets(micro, ranks, limit), alone) << limit << ' ' << micro << ' ' << ranks;
  }
}

TEST(ValidationData, LimitsAndRefusals) {
  const Text text(1001);
  EXPECT_EQ(ValidationData(text.stream, deal(10, 4, 0, 0, 2), 0).batches(), 13);
  EXPECT_EQ(ValidationData(text.stream, deal(10, 4, 0, 0, 2), 40).batches(), 5);
  EXPECT_EQ(ValidationData(text.stream, deal(10, 4, 0, 0, 2), 33).batches(), 5);
  EXPECT_EQ(ValidationData(text.stream, deal(10, 4, 0, 0, 2), 400).batches(), 13);
  const Text one(1);
  EXPECT_ERROR(ValidationData(one.stream, deal(10, 1, 0, 0, 1), 0), "has 1 tokens");
}

DataOptions random_options(std::uint64_t seed) {
  DataOptions options;
  options.format = Format::random;
  options.sequence_length = 7;
  options.seed = seed;
  return options;
}

TEST(RandomTokens, AreAFunctionOfSeedAndIndex) {
  constexpr std::int64_t vocabulary = 50;
  const TokenStream stream(random_options(1), {}, vocabulary);
  const TokenStream other(random_options(2), {}, vocabulary);
  std::vector<std::int32_t> all(10'000), others(all.size());
  stream.read(0, all);
  other.read(0, others);
  EXPECT_NE(all, others);
  std::vector<double> counts(vocabulary);
  for (const std::int32_t token : all) ++counts.at(static_cast<std::size_t>(token));
  double chi_squared = 0;  // 49 degrees of freedom: below 86 for 999 in 1000 seeds
  for (const double count : counts) chi_squared += (count - 200) * (count - 200) / 200;
  EXPECT_LT(chi_squared, 86);
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t first = random() % all.size(), count = random() % (all.size() - first) % 20;
    std::vector<std::int32_t> some(count);
    stream.read(static_cast<std::int64_t>(first), some);
    EXPECT_TRUE(
        std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(first)));
  }
  stream.read(stream.size() - 20, std::span(all).first(20));
}

TEST(RandomTokens, AreDealtToAnyNumberOfRanksFromAnyStep) {
  const TrainingData data(random_options(3), 50);
  const auto rows = [&](int ranks, std::int64_t first_step) {  // for step 2, in order
    std::vector<std::vector<std::int32_t>> seen(4);
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(data, deal(7, 1, 4, rank, ranks), 3, first_step);
      for (std::int64_t k = 0; k < (3 - first_step) * 4 / ranks; ++k) {
        const TokenBatch& batch = loader.next();
        seen[static_cast<std::size_t>(k % (4 / ranks) * ranks + rank)] = batch.tokens;
        EXPECT_TRUE(
            std::equal(batch.tokens.begin() + 1, batch.tokens.end(), batch.targets.begin()));
      }
    }
    return seen;
  };
  const auto one = rows(1, 0);
  EXPECT_EQ(rows(2, 0), one);
  EXPECT_EQ(rows(4, 2), one);
  EXPECT_NE(one[0], one[1]);
}

TEST(RandomTokens, HaveDocumentsWhereEosIsNamed) {
  auto options = random_options(4);
  options.document_mask = true;
  options.eos_token = 9;
  const TokenStream stream(options, {}, 10);
  std::vector<std::int32_t> all(300);
  stream.read(0, all);
  for (std::int64_t from = 1; from < 300; ++from) {
    std::int64_t expected = from;
    while (expected < 300 && all[static_cast<std::size_t>(expected - 1)] != 9) ++expected;
    EXPECT_EQ(stream.next_document(from, 300), expected) << from;
  }
}

}  // namespace
}  // namespace llamesh::data
