#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "data/loader.hpp"
#include "files.hpp"

// The cursor's guarantee: a run's sequences and their order are a function of its inputs, for any
// number of ranks and resumes.

namespace llamesh::data {
namespace {

using test::TemporaryFolder;
using Row = std::vector<std::int32_t>;  ///< tokens, targets, document starts

constexpr std::int64_t length = 8;
constexpr std::int64_t global_batch = 12;

/// Three JSONL sources with prompts, distinguished by their letters.
class Cursor : public testing::Test {
 protected:
  Cursor() {
    std::mt19937 random(23);
    for (const auto& [letter, lines, weight] :
         {std::tuple{'a', 20, 1.0}, {'b', 32, 0.5}, {'c', 9, 2.0}}) {
      std::string text;
      for (int i = 0; i < lines; ++i) {
        const std::string content = std::to_string(i) + std::string(1 + random() % 30, letter);
        text += i % 3 == 0 ? R"({"messages": [{"role": "user", "content": ""}, )"
                             R"({"role": "assistant", "content": ")" +
                                 content + "\"}]}\n"
                           : R"({"text": ")" + content + "\"}\n";
      }
      options_.sources.push_back({{folder_.write(std::string(1, letter), text)}, weight});
    }
    options_.format = Format::jsonl;
    options_.sequence_length = length;
    options_.document_mask = true;
  }

  /// Returns the rows in steps [first, first + steps), as read by `ranks` ranks together, ordered
  /// by position.
  static std::vector<Row> rows(const TrainingData& data, int ranks, std::int64_t micro,
                               std::int64_t first, std::int64_t steps) {
    std::vector<Row> result(static_cast<std::size_t>(steps * global_batch));
    for (int rank = 0; rank < ranks; ++rank) {
      const BatchPartition partition{length, micro, global_batch, rank, ranks};
      Loader loader(data, partition, 5, first);
      for (std::int64_t k = 0; k < steps * partition.micro_batches(); ++k) {
        const TokenBatch& batch = loader.next();
        const std::int64_t position = (k * ranks + rank) * micro;
        for (std::int64_t i = 0; i < micro; ++i)
          for (const auto* values : {&batch.tokens, &batch.targets, &batch.document_starts})
            result[static_cast<std::size_t>(position + i)].insert(
                result[static_cast<std::size_t>(position + i)].end(), values->begin() + i * length,
                values->begin() + (i + 1) * length);
      }
    }
    return result;
  }

  TemporaryFolder folder_;
  DataOptions options_;
};

TEST_F(Cursor, IsTheSameForEveryNumberOfRanks) {
  for (const Order order : {Order::shuffled, Order::sequential}) {
    options_.order = order;
    const TrainingData data(options_, 256);
    const auto expected = rows(data, 1, 1, 0, 20);
    for (const auto& [ranks, micro] : {std::pair{1, 12}, {2, 3}, {3, 1}, {3, 4}, {4, 3}, {6, 2}})
      EXPECT_EQ(rows(data, ranks, micro, 0, 20), expected) << ranks << " ranks, " << micro;
  }
}

TEST_F(Cursor, GoesOnAtAnyStepWithAnyNumberOfRanks) {
  const TrainingData data(options_, 256);
  constexpr std::int64_t steps = 25;
  const auto expected = rows(data, 2, 2, 0, steps);
  const int numbers[] = {1, 2, 3, 4, 6};
  for (std::int64_t first = 0; first < steps; ++first) {
    const int ranks = numbers[first % 5];
    EXPECT_EQ(rows(data, ranks, 1, first, steps - first),
              std::vector<Row>(expected.begin() + first * global_batch, expected.end()))
        << "from step " << first << " on " << ranks << " ranks";
  }
}

TEST_F(Cursor, ShowsEverySequenceAsOftenAsItsWeightSays) {
  const TrainingData data(options_, 256);
  const Sampler sampler = data.sampler(5);
  // Enough positions for two epochs, regardless of step boundaries.
  const std::int64_t positions = 2 * sampler.epoch_length();
  auto seen = rows(data, 3, 2, 0, positions / global_batch + 1);
  seen.resize(static_cast<std::size_t>(positions));
  std::map<Row, int> counts;
  for (const Row& row : seen) ++counts[row];
  std::map<Row, int> expected;
  for (std::size_t source = 0; source < 3; ++source) {
    const TokenStream& stream = data.stream(source);
    const std::int64_t sequences = whole_sequences(stream.size(), length);
    // Two epochs with weight 0.5 are one pass, plus one sequence if the quota is rounded up.
    ASSERT_TRUE(source != 1 || sequences % 2 == 0) << sequences << ": take other texts";
    for (std::int64_t i = 0; i < sequences; ++i) {
      TokenBatch batch(1, length);
      batch.set_row(0, stream, i);
      Row row = batch.tokens;
      for (const auto* values : {&batch.targets, &batch.document_starts})
        row.insert(row.end(), values->begin(), values->end());
      expected[row] += source == 0 ? 2 : source == 1 ? 1 : 4;
    }
  }
  EXPECT_EQ(counts, expected);
}

TEST_F(Cursor, SequencesDoNotCrossSources) {
  const TrainingData data(options_, 256);
  for (const Row& row : rows(data, 1, 12, 0, 30)) {
    // The template's letters are in all rows, so only look at repeated letters.
    std::set<char> letters;
    for (std::size_t i = 0; i + 1 < length; ++i)
      if (row[i] == row[i + 1] && row[i] >= 'a' && row[i] <= 'c')
        letters.insert(static_cast<char>(row[i]));
    EXPECT_LE(letters.size(), 1U);
  }
}

TEST_F(Cursor, DescribesEverySource) {
  const TrainingData data(options_, 256);
  const auto lines = data.describe();
  ASSERT_EQ(lines.size(), 3U);
  const Sampler sampler = data.sampler(0);
  double percent = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i].find("data: '" + options_.sources[i].files[0] + "': "), 0U) << lines[i];
    EXPECT_NE(lines[i].find(fmt::format("{} tokens", data.stream(i).size())), std::string::npos);
    EXPECT_NE(lines[i].find(fmt::format("{} of the {} of an epoch", sampler.quota(i),
                                        sampler.epoch_length())),
              std::string::npos)
        << lines[i];
    percent += std::stod(lines[i].substr(lines[i].rfind('(') + 1));
  }
  EXPECT_NEAR(percent, 100, 0.02);
  DataOptions one = options_;
  one.sources.clear();
  one.train = options_.sources[0].files;
  EXPECT_EQ(TrainingData(one, 256).describe().at(0).find("weight"), std::string::npos);
}

TEST_F(Cursor, RefusesSourcesThatCannotBeShown) {
  options_.sources[1].weight = 1e-4;
  EXPECT_ERROR(TrainingData(options_, 256),
               "data.train[1]: with weight 0.0001 an epoch shows none");
  options_.sources[1] = {{folder_.write("short", "{\"text\": \"abc\"}")}, 1};
  EXPECT_ERROR(TrainingData(options_, 256), "short' has 4 tokens, but one sequence needs 9");
  options_.sources[1].files.clear();
  EXPECT_ERROR(TrainingData(options_, 256), "no data files are given");
  options_.sources.clear();
  EXPECT_ERROR(TrainingData(options_, 256), "data.train names no file");
}

}  // namespace
}  // namespace llamesh::data
