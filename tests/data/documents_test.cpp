#include <gtest/gtest.h>

#include <random>
#include <set>

#include "data/sampler.hpp"
#include "data/token_batch.hpp"
#include "data/validation.hpp"
#include "files.hpp"

// Tests document starts and loss masks, from the files to the batches.

namespace llamesh::data {
namespace {

using namespace std::string_literals;
using test::bytes_of;
using test::header;
using test::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

/// The expected stream, token by token.
struct Expected {
  Ids tokens;
  std::set<std::int64_t> begins;  ///< document starts
  std::set<std::int64_t> masked;  ///< masked from the loss

  void add(const std::string& text, bool begins_document = true, bool in_loss = true) {
    if (begins_document) begins.insert(size());
    for (const char c : text) {
      if (!in_loss) masked.insert(size());
      tokens.push_back(static_cast<unsigned char>(c));
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int32_t at(std::int64_t i) const { return tokens[static_cast<std::size_t>(i)]; }
};

DataOptions options_of(Format format, bool mask) {
  DataOptions options;
  options.format = format;
  options.document_mask = mask;
  return options;
}

/// Checks every row for several lengths.
void expect_rows(const TokenStream& stream, const Expected& expected, bool mask) {
  ASSERT_EQ(stream.size(), expected.size());
  for (const std::int64_t length : {1, 2, 3, 7, 16, 1000}) {
    TokenBatch batch(2, length);
    for (std::int64_t row = 0; row * length < expected.size() + 2 * length; ++row) {
      batch.set_row(1, stream, row);
      ASSERT_EQ(batch.document_starts.size(), mask ? batch.tokens.size() : 0U);
      std::int64_t start = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t at = row * length + i;
        const auto place = static_cast<std::size_t>(length + i);
        const bool present = at + 1 < expected.size();
        if (i > 0 && expected.begins.contains(at)) start = i;
        const bool in_loss = present && !expected.masked.contains(at + 1) &&
                             !(mask && expected.begins.contains(at + 1));
        ASSERT_EQ(batch.tokens[place], present ? expected.at(at) : 0) << at;
        ASSERT_EQ(batch.targets[place], in_loss ? expected.at(at + 1) : ignored_target)
            << "target of token " << at << ", length " << length;
        if (mask) {
          ASSERT_EQ(batch.document_starts[place], start) << "token " << at << ", length " << length;
        }
      }
    }
  }
}

class Documents : public testing::TestWithParam<bool> {
 protected:
  void expect(const DataOptions& options, const std::vector<std::string>& files,
              const Expected& expected) const {
    const TokenStream stream(options, files, 256);
    expect_rows(stream, expected, GetParam());
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Mask, Documents, testing::Bool(),
                         [](const auto& test) { return test.param ? "on" : "off"; });

TEST_P(Documents, OfTextAreFiles) {
  Expected expected;
  std::vector<std::string> files;
  for (const char* text : {"one document", "2", "3", "the fourth one is longer than others"}) {
    files.push_back(folder_.write("text" + std::to_string(files.size()), text));
    expected.add(text);
  }
  expect(options_of(Format::text, GetParam()), files, expected);
}

TEST_P(Documents, OfJsonAreLinesOrElements) {
  Expected expected;
  expected.add("whole\0"s);
  expected.add("<|user|>\nq\n<|assistant|>\n", true, false);
  expected.add("yes\0"s, false);
  expected.add("<|user|>\nand?\n<|assistant|>\n", false, false);
  expected.add("no\0"s, false);
  expected.add("t\0"s);
  expected.add(
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nGo\n\n### Response:",
      true, false);
  expected.add("gone\0"s, false);
  const std::vector<std::string> files = {
      folder_.write("a.jsonl", R"({"text": "whole"}
{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}, )"
                               R"({"role": "user", "content": "and?"}, )"
                               R"({"role": "assistant", "content": "no"}]})"),
      folder_.write("b.json",
                    "[\n{\"text\": \"t\"},\n"
                    R"({"instruction": "Go", "input": "", "output": "gone"})"
                    "\n]\n")};
  expect(options_of(Format::jsonl, GetParam()), files, expected);
}

TEST_P(Documents, OfTokenFilesEndWithEos) {
  Expected expected;
  expected.add("e");  // EOS first
  expected.add("abce");
  expected.add("e");
  expected.add("dd");
  expected.add("de", false);  // the next file continues the document
  expected.add("last");
  std::string all;
  for (const std::int32_t id : expected.tokens) all += static_cast<char>(id);
  const auto write = [&](const std::string& name, const std::string& part) {
    return folder_.write(name, header(20240520, 1, static_cast<std::int32_t>(part.size())) +
                                   bytes_of(std::vector<std::uint16_t>(part.begin(), part.end())));
  };
  auto options = options_of(Format::tokens, GetParam());
  options.eos_token = 'e';
  expect(options, {write("a", all.substr(0, 8)), write("b", all.substr(8))}, expected);
}

TEST_P(Documents, OfMegatronPairsAreInTheIndex) {
  Expected expected;
  expected.add("first");
  expected.add("2nd");
  expected.add("another file");
  const auto write = [&](const std::string& name, const std::string& text, std::int64_t border) {
    const auto size = static_cast<std::int64_t>(text.size());
    folder_.write(name + ".bin", text);
    folder_.write(name + ".idx",
                  "MMIDIDX\0\0"s + bytes_of<std::uint64_t>({1}) + "\1" +
                      bytes_of<std::uint64_t>({2, 3}) +
                      bytes_of<std::int32_t>({static_cast<std::int32_t>(border),
                                              static_cast<std::int32_t>(size - border)}) +
                      bytes_of<std::int64_t>({0, border}) + bytes_of<std::int64_t>({0, 1, 2}));
    return folder_.path(name);
  };
  expect(options_of(Format::megatron, GetParam()),
         {write("a", "first2nd", 5), write("b", "another file", 12) + ".bin"}, expected);
}

TEST_P(Documents, AtRandomPlaces) {
  std::mt19937 random(17);
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial) + " of seed 17");
    Expected expected;
    std::string lines;
    for (auto count = 1 + random() % 12; count > 0; --count) {
      const std::string text(1 + random() % 20, static_cast<char>('a' + random() % 26));
      if (random() % 2 == 0) {
        lines += R"({"text": ")" + text + "\"}\n";
        expected.add(text + '\0');
      } else {
        lines += R"({"messages": [{"role": "user", "content": ""}, )"
                 R"({"role": "assistant", "content": ")" +
                 text + "\"}]}\n";
        expected.add("<|user|>\n\n<|assistant|>\n", true, false);
        expected.add(text + '\0', false);
      }
    }
    expect(options_of(Format::jsonl, GetParam()), {folder_.write("r.jsonl", lines)}, expected);
  }
}

TEST(DocumentMasks, NeedToKnowWhereDocumentsEnd) {
  const TemporaryFolder folder;
  const std::vector<std::string> files = {folder.write("ids", "\1\0\2\0"s)};
  auto options = options_of(Format::tokens, true);
  options.token_dtype = TokenDtype::uint16;
  EXPECT_ERROR(TokenStream(options, files, 256), "needs the id that ends a document");
  options.eos_token = 256;
  EXPECT_ERROR(TokenStream(options, files, 256),
               "data.eos_token is 256, but ids must be below model.vocab_size");
  options.eos_token = 255;
  EXPECT_EQ(TokenStream(options, files, 256).size(), 2);
}

TEST(DocumentMasks, OfValidationDataKeepWhatCounts) {
  const TemporaryFolder folder;
  const std::vector<std::string> files = {folder.write("a", "abc"), folder.write("b", "defgh")};
  const TokenStream stream(options_of(Format::text, true), files, 256);
  const ValidationData data(stream, {.sequence_length = 3}, 0);
  TokenBatch batch(1, 3);
  std::string predicted;
  for (std::int64_t k = 0; k < data.batches(); ++k) {
    data.read(k, batch);
    for (const std::int32_t target : batch.targets)
      if (target >= 0) predicted += static_cast<char>(target);
  }
  EXPECT_EQ(predicted, "bcefgh");  // all except each document's first token
}

TEST(Jsonl, StreamsAreRefusedWithFileAndLine) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& text) {
    const std::vector<std::string> files = {folder.write("f.jsonl", text)};
    return TokenStream(options_of(Format::jsonl, false), files, 256);
  };
  EXPECT_ERROR(open("{\"text\": \"a\"}\n{\"text\": 4}\n"), "f.jsonl', line 2: 'text' must be");
  EXPECT_ERROR(open("\n \n"), "f.jsonl' contains no document");
  EXPECT_ERROR(open("[]"), "f.jsonl' contains no document");
  EXPECT_ERROR(open("[{\"text\": \"a\"},\n{\"text\": 4}]"), "record 2 (line 2): 'text' must be");
  EXPECT_ERROR(open(""), "is empty");
  EXPECT_EQ(open("{\"text\": \"a\"}").size(), 2);
}

}  // namespace
}  // namespace llamesh::data
