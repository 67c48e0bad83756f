#include "data/training_data.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "data/loader.hpp"
#include "data/validation.hpp"
#include "files.hpp"

namespace llamesh::data {
namespace {

/// Options for headerless token files.
DataOptions ids_options(std::int64_t sequence_length) {
  DataOptions options;
  options.format = Format::tokens;
  options.token_dtype = TokenDtype::uint16;
  options.sequence_length = sequence_length;
  return options;
}

DataOptions records_options(Packing packing, std::int64_t sequence_length) {
  DataOptions options;
  options.format = Format::jsonl;
  options.packing = packing;
  options.sequence_length = sequence_length;
  return options;
}

/// Writes a token file in which only these tokens count in the loss.
std::string write_masked(const test::TemporaryFolder& folder, const std::string& name,
                         std::int64_t tokens, const std::vector<std::int64_t>& counted) {
  const auto count = static_cast<std::size_t>(tokens);
  std::string mask(count, '\0');
  for (const auto at : counted) mask.at(static_cast<std::size_t>(at)) = 1;
  folder.write(name + ".mask.npy", mask);
  return folder.write(name, test::bytes_of(std::vector<std::uint16_t>(count, 7)));
}

/// Returns a conversation of 84 bytes before its answer, which has two with its end.
std::string long_prompt() {
  return R"({"messages": [{"role": "user", "content": ")" + std::string(60, 'q') +
         R"("}, {"role": "assistant", "content": "a"}]})" + "\n";
}

/// Returns the first token that a row would have as a target, or `limit`.
std::int64_t found_one_by_one(const TokenStream& stream, std::int64_t from, std::int64_t limit) {
  for (std::int64_t at = from; at < limit; ++at) {
    std::int32_t target = 0;
    stream.mask_targets(at, {&target, 1});
    const bool begins = stream.masks_documents() && stream.next_document(at, at + 1) == at;
    if (target != ignored_target && !begins) return at;
  }
  return limit;
}

void expect_next_targets(const TokenStream& stream) {
  for (std::int64_t from = 1; from <= stream.size(); ++from)
    for (const std::int64_t room :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{5}, stream.size()}) {
      const auto limit = std::min(from + room, stream.size());
      EXPECT_EQ(stream.next_target(from, limit), found_one_by_one(stream, from, limit))
          << from << " to " << limit;
    }
}

TEST(Targets, AreFoundAsTheMaskHasThem) {
  const test::TemporaryFolder folder;
  std::mt19937 random(5);
  std::vector<std::int64_t> counted;
  for (std::int64_t at = 0; at < 60; ++at)
    if (random() % 4 == 0) counted.push_back(at);
  const auto masked = write_masked(folder, "masked", 60, counted);
  const auto unmasked = folder.write("all", test::bytes_of(std::vector<std::uint16_t>(9, 7)));
  const std::vector<std::string> files = {masked, unmasked, masked};
  auto options = ids_options(4);
  expect_next_targets(TokenStream(options, files, 65536));
  options.document_mask = true;
  options.eos_token = 7;  // every token begins a document
  const TokenStream none(options, files, 65536);
  expect_next_targets(none);
  EXPECT_EQ(none.next_target(1, none.size()), none.size());
}

TEST(Targets, AreFoundAsRecordsHaveThem) {
  const test::TemporaryFolder folder;
  const std::string turns = R"({"messages": [{"role": "user", "content": ""}, )"
                            R"({"role": "assistant", "content": "b", "train": false}]})";
  const auto file = folder.write(
      "a.jsonl", "{\"text\": \"x\"}\n" + turns + "\n" + turns + "\n{\"text\": \"yz\"}\n" + turns);
  auto options = records_options(Packing::concatenate, 4);
  for (const bool mask : {false, true}) {
    options.document_mask = mask;
    expect_next_targets(TokenStream(options, {{file}}, 256));
  }
}

TEST(Targets, DataWithoutOneAreRefused) {
  const test::TemporaryFolder folder;
  auto options = records_options(Packing::concatenate, 64);
  options.train = {folder.write("a.jsonl", long_prompt())};
  // The only sequence ends within the prompt.
  EXPECT_ERROR(TrainingData(options, 256).check_targets(),
               "no token of the training data '" + options.train.front() +
                   "' counts in the loss: the last tokens, too few for a sequence, are not used: "
                   "lower data.sequence_length or set data.packing=best_fit; or check their loss");
  for (const auto packing : {Packing::best_fit, Packing::none}) {
    options.packing = packing;
    TrainingData(options, 256).check_targets();
  }
  auto ids = ids_options(4);
  ids.train = {write_masked(folder, "b", 41, {})};
  EXPECT_ERROR(TrainingData(ids, 65536).check_targets(), "no token of the training data");
  ids.train = {write_masked(folder, "c", 41, {0})};  // nothing predicts the first token
  EXPECT_ERROR(TrainingData(ids, 65536).check_targets(), "no token of the training data");
  ids.train = {write_masked(folder, "d", 41, {40})};
  TrainingData(ids, 65536).check_targets();
  ids.packing = Packing::best_fit;
  ids.eos_token = 0;
  TrainingData(ids, 65536).check_targets();
  ids.train = {folder.path("b")};
  EXPECT_ERROR(TrainingData(ids, 65536).check_targets(), "counts in the loss: check their loss");
}

TEST(Targets, OfOneSourceAreEnough) {
  const test::TemporaryFolder folder;
  const auto none = write_masked(folder, "none", 41, {}),
             some = write_masked(folder, "some", 41, {9});
  auto options = ids_options(4);
  options.sources = {{{none}}, {{some}}};
  TrainingData(options, 65536).check_targets();
  options.sources = {{{none}}, {{none}}};
  EXPECT_ERROR(TrainingData(options, 65536).check_targets(), "none' and 1 other source counts");
}

TEST(Targets, AreFoundBetweenTheSequencesLookedAt) {
  const test::TemporaryFolder folder;
  auto options = ids_options(4);
  options.train = {write_masked(folder, "a", 4 * 5000 + 1, {4 * 7 + 2})};
  TrainingData(options, 65536).check_targets();
}

TEST(Targets, MissingInMostSequencesAreReported) {
  const test::TemporaryFolder folder;
  auto options = ids_options(4);
  const auto warnings = [&](const std::vector<std::int64_t>& counted) {
    options.train = {write_masked(folder, "a", 41, counted)};
    return TrainingData(options, 65536).warnings();
  };
  EXPECT_EQ(warnings({4 * 3 + 2}),
            std::vector{"data: 90 % of the sequences of '" + folder.path("a") +
                        "' have no token that counts in the loss; are the prompts longer than "
                        "data.sequence_length (4)?"});
  EXPECT_EQ(warnings({1, 5, 9, 13, 17}), std::vector<std::string>());
}

TEST(Targets, CutFromTheirPromptAreCounted) {
  const test::TemporaryFolder folder;
  std::string records;
  for (int i = 0; i < 4; ++i) records += long_prompt();
  records += "{\"text\": \"a\"}\n";
  const auto described = [&](Packing packing, std::int64_t sequence_length) {
    auto options = records_options(packing, sequence_length);
    options.train = {folder.write("a.jsonl", records)};
    return TrainingData(options, 256).describe().front();
  };
  const auto expect = [&](Packing packing, std::int64_t sequence_length, const std::string& part) {
    const auto line = described(packing, sequence_length);
    EXPECT_NE(line.find(part), std::string::npos) << line;
  };
  // Answers begin with tokens 84, 170, 256 and 342.
  expect(Packing::concatenate, 64, ", 4 of 5 documents cut before their answer");
  expect(Packing::best_fit, 64, "(4 longer than a sequence, 4 cut before their answer)");
  expect(Packing::none, 84, "(4 longer than a sequence)");  // the answer's first byte still fits
  expect(Packing::none, 83, "(4 longer than a sequence, 4 cut before their answer)");
  EXPECT_EQ(described(Packing::best_fit, 128).find("cut"), std::string::npos);
}

TEST(Targets, ValidationDataWithoutOneAreRefused) {
  const test::TemporaryFolder folder;
  const std::vector<std::string> files = {write_masked(folder, "a", 41, {22})};
  const TokenStream stream(ids_options(4), files, 65536);
  const BatchPartition two_ranks{.sequence_length = 4, .ranks = 2};
  // The token that counts is in the sixth sequence.
  for (const std::int64_t limit : {0, 6, 19})
    ValidationData(stream, two_ranks, limit).check_targets();
  EXPECT_ERROR(ValidationData(stream, two_ranks, 5).check_targets(),
               "counts in the loss: evaluate more sequences, or check");
  const std::vector<std::string> masked = {write_masked(folder, "b", 41, {})};
  EXPECT_ERROR(
      ValidationData(TokenStream(ids_options(4), masked, 65536), two_ranks, 0).check_targets(),
      "counts in the loss: check their loss mask");
}

}  // namespace
}  // namespace llamesh::data
