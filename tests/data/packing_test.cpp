#include "data/packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "data/loader.hpp"
#include "files.hpp"

namespace llamesh::data {
namespace {

/// Options for llm.c's token files in which id 0 ends a document.
DataOptions packed_options(Packing packing, std::int64_t sequence_length) {
  DataOptions options;
  options.format = Format::tokens;
  options.token_dtype = TokenDtype::uint16;
  options.eos_token = 0;
  options.packing = packing;
  options.sequence_length = sequence_length;
  return options;
}

/// Returns a stream's bytes: documents with these lengths, each with its EOS.
std::string documents_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::uint16_t> ids;
  std::uint16_t next = 1;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i + 1 < length; ++i) ids.push_back(next++);
    ids.push_back(0);
  }
  return test::bytes_of(ids);
}

/// Returns the sequences as lists of "begin+tokens".
std::vector<std::string> packed(const std::vector<std::int64_t>& lengths, Packing packing,
                                std::int64_t sequence_length) {
  const test::TemporaryFolder folder;
  const std::vector<std::string> files = {folder.write("ids", documents_of(lengths))};
  const TokenStream stream(packed_options(packing, sequence_length), files, 65536);
  const PackedSequences sequences(stream, packing, sequence_length);
  std::vector<std::string> result;
  for (std::int64_t i = 0; i < sequences.size(); ++i) {
    auto& text = result.emplace_back();
    for (const auto& [begin, tokens] : sequences.pieces(i))
      text += fmt::format("{}{}+{}", text.empty() ? "" : " ", begin, tokens);
  }
  return result;
}

using Sequences = std::vector<std::string>;

TEST(Packing, TheLongestDocumentGoesWhereItFitsBest) {
  // Capacity 9: 7, 6 and 5 tokens leave 2, 3 and 4. Then 3 fills the second sequence, the first 2
  // fill the first one, and the others go to the third.
  EXPECT_EQ(packed({2, 5, 7, 3, 6, 2}, Packing::best_fit, 8),
            (Sequences{"0+2 7+7", "2+5 23+2", "14+3 17+6"}));
  EXPECT_EQ(packed({4, 4, 4}, Packing::best_fit, 8), (Sequences{"0+4 4+4", "8+4"}));
}

TEST(Packing, NoneGivesEachDocumentItsOwnSequence) {
  EXPECT_EQ(packed({2, 5, 9, 3}, Packing::none, 8), (Sequences{"0+2", "2+5", "7+9", "16+3"}));
}

TEST(Packing, LongDocumentsAreSplitWithOneTokenInCommon) {
  // 9 tokens fit, 10 need a second piece with one prediction, 17 have two full pieces.
  EXPECT_EQ(packed({9}, Packing::none, 8), (Sequences{"0+9"}));
  EXPECT_EQ(packed({10}, Packing::none, 8), (Sequences{"0+9", "8+2"}));
  EXPECT_EQ(packed({17}, Packing::none, 8), (Sequences{"0+9", "8+9"}));
  EXPECT_EQ(packed({18, 5}, Packing::best_fit, 8), (Sequences{"0+9", "8+9", "16+2 18+5"}));
}

TEST(Packing, ADocumentWithOneTokenHasNothingToPredict) {
  EXPECT_EQ(packed({1, 3, 1, 1, 2}, Packing::best_fit, 8), (Sequences{"1+3 6+2"}));
}

TEST(Packing, PredictsEveryTokenOfADocumentOnce) {
  std::mt19937 random(31);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial) + " of seed 31");
    const auto length = static_cast<std::int64_t>(1 + random() % 20);
    std::vector<std::int64_t> lengths(1 + random() % 60);
    for (auto& tokens : lengths) tokens = static_cast<std::int64_t>(1 + random() % 50);
    const test::TemporaryFolder folder;
    const std::vector<std::string> files = {folder.write("ids", documents_of(lengths))};
    std::map<Packing, std::int64_t> sizes;
    for (const auto packing : {Packing::none, Packing::best_fit}) {
      const TokenStream stream(packed_options(packing, length), files, 65536);
      const PackedSequences sequences(stream, packing, length);
      std::vector<int> predicted(static_cast<std::size_t>(stream.size()), 0);
      std::int64_t inputs = 0;
      for (std::int64_t i = 0; i < sequences.size(); ++i) {
        std::int64_t together = 0;
        for (const auto& [begin, tokens] : sequences.pieces(i)) {
          together += tokens;
          for (std::int64_t at = begin + 1; at < begin + tokens; ++at)
            ++predicted[static_cast<std::size_t>(at)];
        }
        EXPECT_LE(together, length + 1);
        inputs += std::min(together, length);
      }
      std::size_t at = 0;
      for (const std::int64_t tokens : lengths)
        for (std::int64_t i = 0; i < tokens; ++i) EXPECT_EQ(predicted[at++], i == 0 ? 0 : 1);
      EXPECT_EQ(sequences.documents(), std::ssize(lengths));
      EXPECT_EQ(sequences.split_documents(),
                std::ranges::count_if(lengths, [&](auto tokens) { return tokens > length + 1; }));
      if (sequences.size() > 0) {
        EXPECT_NEAR(
            sequences.padding(),
            1 - static_cast<double>(inputs) / static_cast<double>(sequences.size() * length),
            1e-12);
      }
      sizes[packing] = sequences.size();
    }
    EXPECT_LE(sizes[Packing::best_fit], sizes[Packing::none]);
  }
}

/// Conversations and texts of random lengths.
std::string random_records(std::mt19937& random, int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string text(1 + random() % 30, static_cast<char>('a' + random() % 26));
    lines += random() % 2 == 0 ? R"({"text": ")" + text + "\"}\n"
                               : R"({"messages": [{"role": "user", "content": "q"}, )"
                                 R"({"role": "assistant", "content": ")" +
                                     text + "\"}]}\n";
  }
  return lines;
}

DataOptions record_options(const std::string& file, Packing packing, bool mask) {
  DataOptions options;
  options.train = {file};
  options.format = Format::jsonl;
  options.sequence_length = 40;
  options.packing = packing;
  options.document_mask = mask;
  return options;
}

TEST(Packing, RowsHoldTheirPiecesAndPadding) {
  std::mt19937 random(32);
  const test::TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", random_records(random, 60));
  constexpr std::size_t length = 40;
  for (const auto packing : {Packing::none, Packing::best_fit})
    for (const bool mask : {false, true}) {
      const auto options = record_options(file, packing, mask);
      const TrainingData data(options, 256);
      const auto& stream = data.stream(0);
      const PackedSequences sequences(stream, packing, length);
      TokenBatch batch(2, length);
      for (std::int64_t i = 0; i < sequences.size(); ++i) {
        std::ranges::fill(batch.tokens, 7);  // of an earlier batch
        data.read({0, i}, batch, 1);
        std::vector<std::int32_t> tokens, targets, starts;
        for (const auto& [begin, count] : sequences.pieces(i)) {
          const auto start = static_cast<std::int32_t>(tokens.size());
          std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
          stream.read(begin, ids);
          auto shifted = ids;
          stream.mask_targets(begin, shifted);
          tokens.insert(tokens.end(), ids.begin(), ids.end());
          targets.insert(targets.end(), shifted.begin() + 1, shifted.end());
          targets.push_back(ignored_target);
          starts.insert(starts.end(), ids.size(), start);
        }
        ASSERT_LE(tokens.size(), length + 1);
        const auto padding = static_cast<std::int32_t>(std::min(tokens.size(), length));
        tokens.resize(length, 0);
        targets.resize(length, ignored_target);
        starts.resize(length, padding);
        const auto row = [&](const std::vector<std::int32_t>& values) {
          return std::vector<std::int32_t>(values.begin() + length, values.begin() + 2 * length);
        };
        EXPECT_EQ(row(batch.tokens), tokens);
        EXPECT_EQ(row(batch.targets), targets);
        if (mask)
          EXPECT_EQ(row(batch.document_starts), starts);
        else
          EXPECT_TRUE(batch.document_starts.empty());
      }
    }
}

TEST(Packing, IsDealtAlikeToAnyNumberOfRanksFromAnyStep) {
  std::mt19937 random(33);
  const test::TemporaryFolder folder;
  const auto options =
      record_options(folder.write("a.jsonl", random_records(random, 100)), Packing::best_fit, true);
  const TrainingData data(options, 256);
  constexpr std::int64_t global_batch = 4, steps = 12;
  const auto rows = [&](int ranks, std::int64_t first_step) {
    std::map<std::int64_t, std::vector<std::int32_t>> by_position;
    for (int rank = 0; rank < ranks; ++rank) {
      const BatchPartition partition{40, 1, global_batch, rank, ranks};
      Loader loader(data, partition, 9, first_step);
      const auto first = first_step * partition.micro_batches();
      for (auto k = first; k < steps * partition.micro_batches(); ++k) {
        const TokenBatch& batch = loader.next();
        auto& row = by_position[k * ranks + rank];
        for (const auto* values : {&batch.tokens, &batch.targets, &batch.document_starts})
          row.insert(row.end(), values->begin(), values->end());
      }
    }
    return by_position;
  };
  const auto alone = rows(1, 0);
  EXPECT_EQ(std::ssize(alone), global_batch * steps);
  for (const int ranks : {2, 4}) EXPECT_EQ(rows(ranks, 0), alone) << ranks;
  auto resumed = alone;
  std::erase_if(resumed, [](const auto& row) { return row.first < 5 * global_batch; });
  EXPECT_EQ(rows(2, 5), resumed);
}

TEST(Packing, SaysWhatItMadeOfTheDocuments) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("ids", documents_of({9, 3, 12}));
  auto options = packed_options(Packing::best_fit, 8);
  options.train = {file};
  // Pieces of 9, 9, 4 and 3 tokens: 3 sequences with 8 + 8 + 7 of 24 inputs.
  EXPECT_EQ(TrainingData(options, 65536).describe(),
            std::vector{"data: '" + file +
                        "': 24 tokens, 3 sequences of 8 from 3 documents (1 longer than a "
                        "sequence), 4.17 % padding"});
}

TEST(Packing, CountsOneAsOne) {
  const test::TemporaryFolder folder;
  const auto file = folder.write("ids", documents_of({9}));
  auto options = packed_options(Packing::best_fit, 8);
  options.train = {file};
  EXPECT_EQ(TrainingData(options, 65536).describe(),
            std::vector{"data: '" + file +
                        "': 9 tokens, 1 sequence of 8 from 1 document (0 longer than a "
                        "sequence), 0.00 % padding"});
}

TEST(Packing, RefusesWhatHasNoDocuments) {
  const test::TemporaryFolder folder;
  auto options = packed_options(Packing::best_fit, 8);
  options.train = {folder.write("ids", documents_of({1, 1, 1}))};
  EXPECT_ERROR(TrainingData(options, 65536), "has 3 documents with at most 1 token each");
  options.eos_token = -1;
  EXPECT_ERROR(TrainingData(options, 65536), "data.packing needs the id that ends a document");
}

TEST(Packing, IsPartOfTheFingerprint) {
  const test::TemporaryFolder folder;
  auto options = packed_options(Packing::concatenate, 8);
  options.train = {folder.write("ids", documents_of({9, 3, 12}))};
  const auto fingerprint = [&] { return TrainingData(options, 65536).fingerprint(4); };
  const auto concatenated = fingerprint();
  EXPECT_EQ(to_text(concatenated).find("packing"), std::string::npos);  // as before there was any
  options.packing = Packing::best_fit;
  const auto best_fit = fingerprint();
  EXPECT_EQ(difference(concatenated, best_fit), "data.packing is best_fit; it was concatenate");
  const auto read_again = parse_fingerprint(to_text(best_fit));
  ASSERT_TRUE(read_again.has_value());
  EXPECT_EQ(difference(*read_again, best_fit), "");
  options.eos_token = 5;  // other documents in the same file
  EXPECT_EQ(difference(best_fit, fingerprint()).find("the hash of where documents begin is"), 0U);
}

}  // namespace
}  // namespace llamesh::data
