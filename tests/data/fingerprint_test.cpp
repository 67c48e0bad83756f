#include "data/fingerprint.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "data/training_data.hpp"
#include "files.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::TemporaryFolder;

const std::string golden = test::source_file("tests/tokenizer/golden");

std::uint64_t sample_of(const std::vector<std::uint8_t>& bytes, std::size_t piece_bytes) {
  RunningHash hash;
  add_sample(hash, bytes, piece_bytes);
  return hash.value();
}

TEST(Sample, TakesAllOfLittle) {
  std::vector<std::uint8_t> bytes(std::size_t{8} * 10);
  const auto before = sample_of(bytes, 10);
  for (auto& byte : bytes) {
    byte = 1;
    EXPECT_NE(sample_of(bytes, 10), before);
    byte = 0;
  }
  bytes.push_back(0);
  EXPECT_NE(sample_of(bytes, 10), before);
}

TEST(Sample, TakesPiecesOfMuchFromTheFirstByteToTheLast) {
  std::vector<std::uint8_t> bytes(1003);
  const auto before = sample_of(bytes, 10);
  std::vector<std::size_t> noticed;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = 1;
    if (sample_of(bytes, 10) != before) noticed.push_back(i);
    bytes[i] = 0;
  }
  ASSERT_EQ(noticed.size(), 80U);
  for (std::size_t piece = 0; piece < 8; ++piece) EXPECT_EQ(noticed[10 * piece], 993 * piece / 7);
  EXPECT_EQ(noticed.back(), bytes.size() - 1);
  bytes.push_back(0);
  EXPECT_NE(sample_of(bytes, 10), before) << "the size counts too";
}

TEST(Sample, IsBounded) {
  constexpr std::size_t mib = std::size_t{1} << 20U;
  EXPECT_EQ(piece_bytes_for(1), mib);
  EXPECT_EQ(std::size_t{8} * 64 * piece_bytes_for(64), 64 * mib);
  EXPECT_EQ(8 * piece_bytes_for(100000), std::size_t{128} << 10U);
}

/// Data in one file, as it is and changed.
class Change : public testing::Test {
 protected:
  Change() {
    options_.sequence_length = 2;
    options_.train = {folder_.path("data")};
  }
  Fingerprint now() const { return TrainingData(options_, 1000).fingerprint(4); }
  /// Returns the fingerprint for a file with these bytes.
  Fingerprint of(const std::string& bytes) const {
    // Some file systems sync a rewritten file at once.
    fs::remove(folder_.path("data"));
    folder_.write("data", bytes);
    return now();
  }
  void expect_noticed(const std::string& then, const std::string& now) const {
    const auto before = of(then);
    EXPECT_NE(difference(before, of(now)), "") << then << " -> " << now;
    EXPECT_EQ(difference(before, of(then)), "");
  }

  TemporaryFolder folder_;
  DataOptions options_;
};

TEST_F(Change, OfTextIsNoticed) {
  for (const auto& tokenizer : {std::string("byte"), golden + "/gpt2.json"}) {
    options_.tokenizer = tokenizer;
    expect_noticed("In the beginning", "In the Beginning");
    expect_noticed("In the beginning", "In the beginning!");
  }
}

TEST_F(Change, SaysWhatWasAndWhatIs) {
  const auto text = difference(of("0123456789"), of("0123456789a"));
  EXPECT_NE(text.find("data' has 11 tokens (hash "), std::string::npos) << text;
  EXPECT_NE(text.find("data' had 10 (hash "), std::string::npos) << text;
}

TEST_F(Change, OfWhatCountsIsNoticed) {
  options_.format = Format::jsonl;
  const std::string first = R"({"text": "0123456789"})"
                            "\n";
  const auto chat = [&](const char* prompt, const char* answer) {
    return first + R"({"messages": [{"role": "user", "content": ")" + prompt +
           R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
  };
  expect_noticed(chat("a", "b"), chat("a", "c"));
  // Exactly the same ids.
  expect_noticed(chat("a", "b"), first + R"({"text": "<|user|>\na\n<|assistant|>\nb"})"
                                         "\n");
  const auto before = of(chat("a", "b"));
  EXPECT_EQ(difference(before, of("\n" + chat("a", "b"))), "") << "an empty line is no change";
}

TEST_F(Change, OfTokensIsNoticed) {
  options_.format = Format::tokens;
  options_.token_dtype = TokenDtype::uint16;
  expect_noticed(bytes_of<std::uint16_t>({1, 2, 3, 4}), bytes_of<std::uint16_t>({1, 2, 4, 3}));
  expect_noticed(bytes_of<std::uint16_t>({1, 2, 3, 4}), bytes_of<std::uint16_t>({1, 2, 3, 4, 0}));
}

TEST_F(Change, OfAMegatronIndexIsNoticed) {
  options_.format = Format::megatron;
  folder_.write("data.bin", bytes_of<std::uint16_t>({1, 2, 3, 4}));
  const auto index = [&](std::int64_t second) {
    using namespace std::string_literals;
    fs::remove(folder_.path("data.idx"));
    folder_.write("data.idx", "MMIDIDX\0\0"s + bytes_of<std::uint64_t>({1}) +
                                  bytes_of<std::uint8_t>({8}) + bytes_of<std::uint64_t>({2, 3}) +
                                  bytes_of<std::int32_t>({2, 2}) + bytes_of<std::int64_t>({0, 4}) +
                                  bytes_of<std::int64_t>({0, second, 2}));
    return now();
  };
  const auto before = index(1);
  EXPECT_EQ(difference(before, index(1)), "");
  EXPECT_NE(difference(before, index(2)), "");
}

TEST_F(Change, OfTheTokenizerIsNoticed) {
  const std::string text(300, 'a');
  options_.tokenizer = folder_.path("tokenizer.json");
  const auto with = [&](const std::string& json) {
    fs::copy_file(golden + json, options_.tokenizer, fs::copy_options::overwrite_existing);
    return of(text);
  };
  const auto before = with("/gpt2.json");
  EXPECT_EQ(difference(before, with("/gpt2.json")), "");
  const auto said = difference(before, with("/llama2.json"));
  EXPECT_NE(said.find("the tokenizer '" + options_.tokenizer + "' has other tokens"),
            std::string::npos)
      << said;
  options_.tokenizer = "byte";
  EXPECT_NE(difference(before, of(text)), "");
}

TEST_F(Change, OfThePlaceIsNone) {
  const auto before = of("0123456789");
  fs::create_directory(folder_.path() / "elsewhere");
  fs::rename(folder_.path("data"), folder_.path("elsewhere/text"));
  options_.train = {folder_.path("elsewhere/text")};
  EXPECT_EQ(difference(before, now()), "");
}

TEST_F(Change, OfTheListOfFilesIsNoticed) {
  const auto a = folder_.write("a", "0123456789");
  const auto b = folder_.write("b", "abcdefghij");
  const auto of_sources = [&](const std::vector<std::vector<std::string>>& sources) {
    options_.train.clear();
    options_.sources.clear();
    for (const auto& files : sources) options_.sources.push_back({files});
    return now();
  };
  const auto both = of_sources({{a, b}});
  EXPECT_EQ(difference(both, of_sources({{a, b}})), "");
  EXPECT_NE(difference(both, of_sources({{b, a}})), "");
  EXPECT_EQ(difference(both, of_sources({{a}})),
            "source 1 has 1 files with 10 tokens; it had 2 with 20");
  EXPECT_EQ(difference(both, of_sources({{a}, {b}})), "data.train has 2 sources; it had 1");
}

TEST_F(Change, OfTheOrderIsNoticedWhereItIsKnown) {
  const auto before = of("0123456789");
  options_.order = Order::sequential;
  const auto after = now();
  EXPECT_EQ(difference(before, after), "data.order is sequential; it was shuffled");
  auto unknown = before;
  unknown.data_order.reset();  // as in the first llamesh versions
  unknown = parse_fingerprint(to_text(unknown)).value();
  EXPECT_FALSE(unknown.data_order);
  EXPECT_EQ(difference(unknown, after), "");
}

TEST_F(Change, OfTheChatTemplateNamesIt) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "Give me light."},
      {"role": "assistant", "content": "Let there be light."}]})";
  const std::string line = std::string(chat).replace(chat.find('\n'), 1, " ") + "\n";
  options_.format = Format::jsonl;
  options_.tokenizer = folder_.path("tokenizer.json");
  fs::copy_file(golden + "/qwen.json", options_.tokenizer);
  const auto before = of(line);  // auto, which finds no template
  EXPECT_EQ(to_text(before).find("chat_template"), std::string::npos) << "as in older versions";
  EXPECT_EQ(to_text(before).find("loss_on"), std::string::npos);
  options_.chat_template = ChatTemplate::chatml;
  const auto chatml = now();
  const auto said = "data.chat_template is chatml; it was plain; set data.chat_template=plain";
  EXPECT_EQ(difference(parse_fingerprint(to_text(before)).value(), chatml),
            said + std::string(" to continue"));
  EXPECT_EQ(
      difference(parse_fingerprint(to_text(chatml)).value(), before),
      "data.chat_template is plain; it was chatml; set data.chat_template=chatml to continue");
  EXPECT_EQ(difference(parse_fingerprint(to_text(chatml)).value(), now()), "");
  options_.loss_on = LossOn::all;
  EXPECT_EQ(difference(chatml, now()),
            "data.loss_on is all; it was assistant; set data.loss_on=assistant to continue");
  EXPECT_EQ(difference(parse_fingerprint(to_text(now())).value(), now()), "");
  options_.chat_template = ChatTemplate::automatic;
  const auto all = now();
  options_.loss_on = LossOn::last_assistant;
  EXPECT_EQ(difference(parse_fingerprint(to_text(all)).value(), now()),
            "data.loss_on is last_assistant; it was all; set data.loss_on=all to continue");
}

TEST_F(Change, OfTheFoldersOwnTemplateNamesItsHash) {
  const auto with = [](const std::string& chat_template, std::uint64_t hash) {
    DataOrder order;
    order.chat_template = chat_template;
    return Fingerprint{"t", 1, {{{"f", 10, hash}}}, order};
  };
  EXPECT_EQ(
      difference(with("jinja:0a", 1), with("jinja:0b", 2)),
      "the chat template in the tokenizer's folder has hash 0b; it had 0a; the run folder has "
      "its text in chat_template.jinja");
  auto token_files = with("plain", 2);
  token_files.tokenizer = "";
  EXPECT_EQ(difference(with("jinja:0a", 1), token_files),
            "'f' has 10 tokens (hash 0000000000000002); 'f' had 10 (hash 0000000000000001)")
      << "no template can be set that changes them";
  EXPECT_EQ(difference(with("jinja:0a", 1), with("jinja:0b", 1)), "");
  EXPECT_EQ(
      difference(with("jinja:0a", 1), with("qwen2", 2)),
      "data.chat_template is qwen2; it was jinja:0a; set data.chat_template=jinja to continue");
  EXPECT_EQ(difference(with("jinja:0a", 1), with("jinja:0a", 2)).find("'f' has 10 tokens"), 0U);
}

TEST_F(Change, OfAChatTemplateThatNothingUsesIsNone) {
  options_.format = Format::jsonl;
  options_.tokenizer = golden + "/qwen.json";
  const auto before = of("{\"text\": \"In the beginning\"}\n");
  options_.chat_template = ChatTemplate::chatml;
  EXPECT_EQ(difference(before, now()), "");
  EXPECT_EQ(difference(before, of("{\"text\": \"In the Beginning\"}\n")).find("data.chat"), 0U);
}

TEST_F(Change, OutlivesAText) {
  options_.tokenizer = golden + "/gpt2.json";
  const auto before = of("In the beginning");
  const auto read = parse_fingerprint(to_text(before));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(to_text(*read), to_text(before));
  EXPECT_EQ(difference(*read, before), "");
  EXPECT_EQ(to_text(before).find('\n'), std::string::npos);
}

TEST(Fingerprint, OfRandomTokensSaysTheirSeedAndVocabulary) {
  DataOptions options;
  options.format = Format::random;
  options.seed = 7;
  const auto of = [&](std::int64_t vocabulary) {
    return TrainingData(options, vocabulary).fingerprint(4);
  };
  const auto before = parse_fingerprint(to_text(of(50))).value();
  EXPECT_EQ(difference(before, of(50)), "");
  EXPECT_EQ(difference(before, of(51)).find("'random tokens (seed 7, vocabulary 51)' has "), 0U);
  options.seed = 8;
  EXPECT_NE(difference(before, of(50)).find("; 'random tokens (seed 7, vocabulary 50)' had "),
            std::string::npos);
}

TEST(Fingerprint, WhatIsNoneIsNotRead) {
  for (const char* text : {"", "{", "[]", "{}", R"({"version":2,"tokenizer":"","sources":[]})",
                           R"({"version":1,"tokenizer":"","vocabulary":"x","sources":[]})",
                           R"({"version":1,"tokenizer":"","vocabulary":"0","sources":[]})"})
    EXPECT_FALSE(parse_fingerprint(text).has_value()) << text;
  const auto of_sources = [](const std::string& sources) {
    return parse_fingerprint(R"({"version":1,"tokenizer":"","vocabulary":"0123456789abcdef",)"
                             R"("sources":)" +
                             sources + "}");
  };
  const auto file_of = [](const std::string& tokens) {
    return R"({"path":"a","hash":"0123456789abcdef","tokens":)" + tokens + "}";
  };
  const std::string most = "9223372036854775807";
  EXPECT_TRUE(of_sources("[]"));
  EXPECT_TRUE(of_sources("[[" + file_of(most) + "]]"));
  EXPECT_FALSE(of_sources("[[" + file_of(most) + "," + file_of("1") + "]]")) << "their sum";
  for (const char* tokens : {"-1", "1.5", "1e30", "true", "9223372036854775808"})
    EXPECT_FALSE(of_sources("[[" + file_of(tokens) + "]]")) << tokens;
  EXPECT_FALSE(of_sources("[[1]]"));
  EXPECT_FALSE(of_sources(std::string("[]}\0", 4)));
  Fingerprint odd{"", 0, {{{"a\xff", 1, 2}}}, {}};
  EXPECT_TRUE(parse_fingerprint(to_text(odd)));
}

}  // namespace
}  // namespace llamesh::data
