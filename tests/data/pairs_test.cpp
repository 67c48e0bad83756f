#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "data/encode_jsonl.hpp"
#include "data/pair_records.hpp"
#include "data/training_data.hpp"
#include "data/validation.hpp"
#include "files.hpp"

// Records with a preferred and a rejected answer: their forms, and how they fill sequences.

namespace llamesh::data {
namespace {

const std::string pair_file = "f.jsonl";

/// Formats both documents of a pair: brackets mark the loss, $ is EOS.
std::string pair_in(const std::string& record, const RecordColumns& columns = {}) {
  std::string text;
  for (const Document& document : parse_pair(record, {pair_file, 7}, {.columns = columns})) {
    if (!text.empty()) text += " | ";
    for (const TextSegment& segment : document.segments)
      text += (segment.in_loss ? "[" : "") + segment.text + (segment.eos_follows ? "$" : "") +
              (segment.in_loss ? "]" : "");
  }
  return text;
}

TEST(Pairs, OfTextsHaveACommonPrompt) {
  EXPECT_EQ(pair_in(R"({"prompt": "Q: ", "chosen": "yes", "rejected": "no", "score": 4})"),
            "Q: [yes$] | Q: [no$]");
  EXPECT_EQ(pair_in(R"({"question": "Q: ", "good": "yes", "bad": "no"})",
                    {.prompt = "question", .chosen = "good", .rejected = "bad"}),
            "Q: [yes$] | Q: [no$]");
  // Anthropic's HH.
  EXPECT_EQ(
      pair_in(R"({"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d",)"
              R"( "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: e f"})"),
      "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:[ d$] | "
      "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:[ e f$]");
}

TEST(Pairs, OfConversationsLearnWhatFollowsTheSharedMessages) {
  const std::string user = R"({"role": "user", "content": "a"})";
  const auto says = [](const char* text) {
    return fmt::format(R"({{"role": "assistant", "content": "{}"}})", text);
  };
  const auto conversation = pair_in(fmt::format(
      R"({{"prompt": [{}], "chosen": [{}], "rejected": [{}]}})", user, says("b"), says("c")));
  EXPECT_NE(conversation.find("[b$]"), std::string::npos) << conversation;
  EXPECT_NE(conversation.find("[c$]"), std::string::npos) << conversation;
  // UltraFeedback has whole conversations, and the first message once more as a text.
  EXPECT_EQ(
      pair_in(fmt::format(R"({{"prompt": "a", "chosen": [{0}, {1}], "rejected": [{0}, {2}]}})",
                          user, says("b"), says("c"))),
      conversation);
  // Shared answers are not learned.
  const auto longer =
      pair_in(fmt::format(R"({{"chosen": [{0}, {1}, {0}, {2}], "rejected": [{0}, {1}, {0}, {3}]}})",
                          user, says("shared"), says("b"), says("c")));
  EXPECT_EQ(longer.find("[shared"), std::string::npos) << longer;
  EXPECT_NE(longer.find("shared"), std::string::npos) << longer;
  EXPECT_NE(longer.find("[b$]"), std::string::npos) << longer;
}

TEST(Pairs, AreRefusedWithFileAndLine) {
  const auto refused = [](const std::string& record, const std::string& message) {
    const auto error = test::error_of([&] { pair_in(record); });
    EXPECT_TRUE(error.starts_with("'f.jsonl', line 7: ")) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error;
  };
  refused(R"({"prompt": "a", "chosen": "b"})", "has no 'chosen' and 'rejected'");
  refused(R"({"prompt": "a", "chosen": "b", "rejected": []})", "both texts or both lists");
  refused(R"({"prompt": "a", "chosen": "b", "rejected": "b"})", "are equal; remove the record");
  refused(R"({"prompt": "a", "chosen": "", "rejected": "b"})", "'chosen' has an empty answer");
  refused(R"({"prompt": "a", "chosen": "c", "rejected": ""})", "'rejected' has an empty answer");
  refused(R"({"prompt": "", "chosen": "c", "rejected": "d"})", "'prompt' is empty");
  refused(R"({"chosen": "c", "rejected": "d"})", "has no 'prompt'");
  refused(R"({"chosen": "x\n\nAssistant: c", "rejected": "y\n\nAssistant: d"})",
          "differ before their last answers");
  refused(R"({"prompt": "a", "chosen": "b", "rejected": "c", "images": ["x.png"]})",
          "has 'images'");
  const std::string user = R"({"role": "user", "content": "a"})";
  const std::string answer = R"({"role": "assistant", "content": "b"})";
  refused(fmt::format(R"({{"chosen": [{0}, {1}], "rejected": [{0}, {1}]}})", user, answer),
          "are equal; remove the record");
  refused(fmt::format(R"({{"chosen": [{0}, {1}], "rejected": [{0}]}})", user, answer),
          "'rejected' has an empty answer");
  refused(fmt::format(R"({{"chosen": [{1}], "rejected": [{0}]}})", user, answer),
          "no first message in common");
  refused(fmt::format(R"({{"prompt": [{0}], "chosen": [{1}], "rejected": []}})", user, answer),
          "'rejected' has an empty answer");
  // Elsewhere the message says how to train on pairs.
  EXPECT_ERROR(parse_jsonl(R"({"chosen": "a", "rejected": "b"})", {pair_file, 7}),
               "set train.objective to dpo or ipo");
}

/// Returns options for pairs in one file.
DataOptions pair_options(const std::string& file, std::int64_t sequence_length) {
  DataOptions options;
  options.train = {file};
  options.format = Format::jsonl;
  options.packing = Packing::best_fit;
  options.document_mask = true;
  options.pairs = true;
  options.order = Order::sequential;
  options.sequence_length = sequence_length;
  return options;
}

std::string pair_of(const std::string& prompt, const std::string& chosen,
                    const std::string& rejected) {
  return fmt::format(R"({{"prompt": "{}", "chosen": "{}", "rejected": "{}"}})", prompt, chosen,
                     rejected) +
         "\n";
}

TEST(Pairs, FillSequencesWhole) {
  const test::TemporaryFolder folder;
  // 2 x (1 + 2) + 2 = 7 tokens with the answers' ends, 5 + 4 = 9, and 4 + 3 = 7.
  const auto file = folder.write(
      "p.jsonl", pair_of("a", "bc", "d") + pair_of("e", "fgh", "ij") + pair_of("k", "lm", "n"));
  const TrainingData data(pair_options(file, 13), 256);
  const auto sampler = data.sampler(1);
  ASSERT_EQ(sampler.epoch_length(), 2);  // 7 + 7 tokens fit into 14
  TokenBatch batch(2, 13);
  for (std::int64_t row = 0; row < 2; ++row) data.read(sampler.sequence_at(row), batch, row);
  const auto row_of = [&](const std::vector<std::int32_t>& values, std::int64_t row) {
    return std::vector<std::int32_t>(values.begin() + row * 13, values.begin() + (row + 1) * 13);
  };
  EXPECT_EQ(row_of(batch.tokens, 0),
            (std::vector<std::int32_t>{'a', 'b', 'c', 0, 'a', 'd', 0, 'k', 'l', 'm', 0, 'k', 'n'}));
  EXPECT_EQ(row_of(batch.targets, 0),
            (std::vector<std::int32_t>{'b', 'c', 0, -1, 'd', 0, -1, 'l', 'm', 0, -1, 'n', 0}));
  EXPECT_EQ(row_of(batch.document_starts, 0),
            (std::vector<std::int32_t>{0, 0, 0, 0, 4, 4, 4, 7, 7, 7, 7, 11, 11}));
  EXPECT_EQ(row_of(batch.documents, 0),
            (std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3}));
  EXPECT_EQ(row_of(batch.documents, 1),
            (std::vector<std::int32_t>{4, 4, 4, 4, 4, 5, 5, 5, 5, -1, -1, -1, -1}));
  ASSERT_EQ(batch.pairs.size(), 3U);
  const std::int64_t numbers[] = {0, 2, 1};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.pairs[i].number, numbers[i]);
  EXPECT_EQ(batch.pairs[0].tokens, (std::array<std::int64_t, 2>{3, 2}));
  EXPECT_EQ(batch.pairs[2].tokens, (std::array<std::int64_t, 2>{4, 3}));
  EXPECT_NE(data.describe().at(0).find("from 3 pairs"), std::string::npos) << data.describe().at(0);
  // A batch that is filled again begins its pairs anew.
  data.read(sampler.sequence_at(1), batch, 0);
  EXPECT_EQ(batch.pairs.size(), 1U);
}

TEST(Pairs, AreValidatedOnceEach) {
  const test::TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 23; ++i)
    lines += pair_of("q", std::string(static_cast<std::size_t>(1 + i % 5), 'a'), "b");
  const auto file = folder.write("p.jsonl", lines);
  const TrainingData data(pair_options(file, 20), 256);
  std::vector<std::int64_t> numbers;
  for (const int rank : {0, 1, 2}) {
    const ValidationData part(
        data.stream(0), {.sequence_length = 20, .micro_batch = 2, .rank = rank, .ranks = 3}, 0);
    for (std::int64_t k = 0; k < part.batches(); ++k) {
      TokenBatch batch(2, 20);
      part.read(k, batch);
      for (const auto& pair : batch.pairs) numbers.push_back(pair.number);
    }
  }
  std::ranges::sort(numbers);
  ASSERT_EQ(numbers.size(), 23U);
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], std::int64_t(i));
}

TEST(Pairs, ThatDoNotFitAreAllTold) {
  const test::TemporaryFolder folder;
  const auto file =
      folder.write("p.jsonl", pair_of("a", "b", "c") + pair_of("a", "bcdefgh", "i") +
                                  pair_of("a", "bcdefghijk", "i") + pair_of("d", "e", "f"));
  EXPECT_ERROR(
      TrainingData(pair_options(file, 10), 256),
      "line 2: the pair has 12 tokens, prompts included, and a sequence takes both answers "
      "whole, 11 tokens; set data.sequence_length to 14, or remove all 2 such pairs");
  EXPECT_EQ(TrainingData(pair_options(file, 14), 256).sampler(1).epoch_length(), 3);
}

}  // namespace
}  // namespace llamesh::data
