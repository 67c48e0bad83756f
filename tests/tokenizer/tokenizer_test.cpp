#include "tokenizer/tokenizer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "data/files.hpp"
#include "source_file.hpp"
#include "support.hpp"

namespace llamesh::tokenizer {
namespace {

using test::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

const std::vector<std::string> files = {"gpt2.json",      "llama3.json",  "digits.json",
                                        "prefix.json",    "unusual.json", "llama2.json",
                                        "metaspace.json", "bpe.model",    "unigram.model"};

std::string golden(const std::string& file) {
  return test::source_file("tests/tokenizer/golden/") + file;
}

/// Returns words, lines, punctuation and invalid UTF-8 in a random order for each seed.
std::string random_text(std::uint32_t seed, std::size_t bytes, bool valid) {
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {
      "the",  " heaven", " and", "\n",   "\n\n", " ",      "  ",           "And it", " 1611",
      "'s",   ". ",      ", ",   "\r\n", "\t",   "\u00e9", "\u4f60\u597d", "\u0301", "\U0001f600",
      "A.B.", "\u3000",  "<s>",  "-",    "\n  ", "\u2581", "<|endoftext|>"};
  std::string text;
  while (text.size() < bytes) {
    text += parts[random() % parts.size()];
    if (!valid && random() % 50 == 0) text += static_cast<char>(0x80 + random() % 128);
  }
  return text;
}

Ids encode_in_parallel(const Tokenizer& tokenizer, const std::vector<std::string_view>& documents,
                       int threads) {
  Ids ids;
  encode_documents(tokenizer, documents, threads, [&](auto part, std::size_t, auto) {
    ids.insert(ids.end(), part.begin(), part.end());
  });
  return ids;
}

TEST(Tokenizer, BytesAreTokens) {
  const auto bytes = open_tokenizer("byte");
  EXPECT_EQ(bytes->encode("a\xff\n"), (Ids{97, 255, 10}));
  EXPECT_EQ(bytes->decode(Ids{97, 255, 10}), "a\xff\n");
  EXPECT_EQ(bytes->vocab_size(), 256);
  EXPECT_FALSE(bytes->eos().has_value());
  EXPECT_TRUE(bytes->suffix_ids().empty());
}

/// Returns the ids for the text in chunks of at least `step` bytes, and adds their number to
/// `cuts`.
Ids encode_cut(const Tokenizer& tokenizer, std::string_view text, std::size_t step,
               std::size_t& cuts) {
  Ids ids;
  for (std::size_t at = 0; at < text.size(); ++cuts) {
    const auto rest = text.substr(at);
    const std::size_t end = tokenizer.next_cut(rest, std::min(step, rest.size()));
    tokenizer.encode_chunk(rest.substr(0, end), at == 0 ? Chunk::first : Chunk::continuation, ids);
    at += end;
  }
  return ids;
}

/// Adds a token and its merge for each pair of white-space characters to a byte-level tokenizer.
std::string with_blank_tokens(const std::string& file, const TemporaryFolder& folder) {
  auto json = nlohmann::json::parse(std::ifstream(golden(file)));
  auto& model = json["model"];
  auto& merges = model["merges"];
  const bool as_text = merges.front().is_string();
  auto id = model["vocab"].size() + json["added_tokens"].size();
  for (const std::string first : {"\u0120", "\u010a", "\u010d", "\u0109"})  // space, \n, \r, \t
    for (const std::string second : {"\u0120", "\u010a", "\u010d", "\u0109"}) {
      if (model["vocab"].contains(first + second)) continue;
      model["vocab"][first + second] = id++;
      if (as_text)
        merges.push_back(fmt::format("{} {}", first, second));
      else
        merges.push_back({first, second});
    }
  return folder.write(file, json.dump());
}

TEST(Tokenizer, BlankLinesAreNotCut) {
  const TemporaryFolder folder;
  std::string text;
  for (const char* part : {"x.", "\n\n", "x.", " \n", "y9", "\r\n", "z!", "\n", "\t\n", "1\n2\n"})
    text += part;
  for (int i = 0; i < 6; ++i) text += text;
  for (const std::string file : {"gpt2.json", "llama3.json", "qwen.json"}) {
    const auto tokenizer = open_tokenizer(with_blank_tokens(file, folder));
    Ids whole;
    tokenizer->encode_chunk(text, Chunk::first, whole);
    std::size_t cuts = 0;
    for (std::size_t step = 1; step < 40; ++step)
      EXPECT_EQ(encode_cut(*tokenizer, text, step, cuts), whole)
          << file << ", chunks of " << step << " bytes and more";
    EXPECT_GT(cuts, 1000U) << file;
  }
}

TEST(Tokenizer, CutTextHasTheIdsOfTheWholeText) {
  for (const auto& file : files) {
    // Unigram scores are only certain to add up alike within 4 KiB.
    const auto tokenizer = open_tokenizer(golden(file));
    const std::string text = random_text(7, file == "unigram.model" ? 3000 : 40'000, false);
    Ids whole;
    tokenizer->encode_chunk(text, Chunk::first, whole);
    std::size_t cuts = 0;
    for (std::size_t step = 1; step < 3000; step = step * (test::sanitized ? 20 : 2) + 1)
      EXPECT_EQ(encode_cut(*tokenizer, text, step, cuts), whole)
          << file << ", seed 7, chunks of " << step << " bytes and more";
    const bool cannot = file == "unusual.json" || file == "digits.json" || file == "prefix.json";
    EXPECT_EQ(cuts > 100, !cannot) << file << ": " << cuts;  // by pattern, or by lstrip and rstrip
  }
}

TEST(Tokenizer, ATextThatContinuesAnotherIsWhole) {
  for (const char* file :
       {"llama2.json", "gpt2.json", "bpe.model", "mistral3.model", "unigram.model"}) {
    const auto tokenizer = open_tokenizer(golden(file));
    for (const std::string text : {"earth", "a", "the earth and", " the earth", "God's"}) {
      auto ids = tokenizer->encode("heaven");
      tokenizer->encode(text, Chunk::continuation, ids);
      EXPECT_EQ(tokenizer->decode(ids), "heaven" + text) << file;
    }
  }
}

TEST(Tokenizer, ThreadsChangeNothing) {
  for (const auto& file :
       {"gpt2.json", "llama2.json", "bpe.model", "unigram.model", "unusual.json"}) {
    const auto tokenizer = open_tokenizer(golden(file));
    const std::string a = random_text(1, 550'000, true), b = random_text(2, 10, true);
    const std::vector<std::string_view> documents = {b, "", a, b};
    const Ids one = encode_in_parallel(*tokenizer, documents, 1);
    EXPECT_EQ(encode_in_parallel(*tokenizer, documents, 3), one) << file;
    Ids expected;
    for (const auto& text : {b, a, b})
      for (const auto& part :
           {tokenizer->prefix_ids(), tokenizer->encode(text), tokenizer->suffix_ids()})
        expected.insert(expected.end(), part.begin(), part.end());
    EXPECT_EQ(one, expected) << file;
  }
}

/// Returns text without spaces or line ends, so that SentencePiece has no certain place to split
/// it.
std::string text_in_one_word(std::size_t bytes) {
  std::mt19937 random(5);
  const std::vector<std::string> parts = {"the", "heaven", "and", "1611", "\u4f60\u597d", "A.B."};
  std::string text;
  while (text.size() < bytes) text += parts[random() % parts.size()];
  return text;
}

TEST(Tokenizer, LongTextWithoutASpaceHasNearlyTheIdsOfTheWholeText) {
  const std::string text = text_in_one_word(200'000);
  for (const auto& file : {"bpe.model", "unigram.model"}) {
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.Load(golden(file)).ok());
    const auto tokenizer = open_tokenizer(golden(file));
    Ids whole, ids;
    ASSERT_TRUE(library.Encode(text, &whole).ok());
    tokenizer->encode_chunk(text, Chunk::first, ids);
    // In four parts: the same tokens at the beginning and at the end, and nearly as many.
    const auto [a, b] = std::mismatch(ids.begin(), ids.end(), whole.begin(), whole.end());
    EXPECT_GT(a - ids.begin(), std::ssize(ids) / 4) << file;
    const auto [c, d] = std::mismatch(ids.rbegin(), ids.rend(), whole.rbegin(), whole.rend());
    EXPECT_GT(c - ids.rbegin(), 1000) << file;
    EXPECT_LE(std::abs(std::ssize(ids) - std::ssize(whole)), 3 * 3) << file;
    EXPECT_EQ(tokenizer->decode(ids), tokenizer->decode(whole)) << file << ": no space is added";
    std::string twice = text;
    twice.append(" ").append(text);
    EXPECT_EQ(encode_in_parallel(*tokenizer, {twice}, 3),
              encode_in_parallel(*tokenizer, {twice}, 1))
        << file;
    const std::string part = text.substr(0, text.rfind("heaven", 65'530));
    ASSERT_TRUE(library.Encode(part, &whole).ok());
    EXPECT_EQ(tokenizer->encode(part), whole) << file;
  }
}

TEST(Tokenizer, WhatTheSinkThrowsEndsTheWork) {
  const auto tokenizer = open_tokenizer(golden("gpt2.json"));
  const std::string text = random_text(3, 3'000'000, true);
  const std::string_view documents[] = {text};
  EXPECT_ERROR(encode_documents(*tokenizer, documents, 2,
                                [](auto&&...) { fail(ExitCode::bad_input, "enough"); }),
               "enough");
}

TEST(Tokenizer, ByteLevelKeepsEveryByte) {
  for (const auto& file : {"gpt2.json", "llama3.json", "unusual.json", "whole.json"}) {
    const auto tokenizer = open_tokenizer(golden(file));
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      const std::string text = random_text(seed, 400, false);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << file << ", seed " << seed;
    }
  }
}

TEST(Tokenizer, BytesThatAreNoUtf8StandForThemselves) {
  const auto tokenizer = open_tokenizer(golden("gpt2.json"));
  Ids expected = tokenizer->encode("the");
  for (const char* invalid : {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"}) {
    Ids ids = tokenizer->encode(std::string("the") + invalid + "the");
    EXPECT_EQ(ids.size(), 2 * expected.size() + std::string_view(invalid).size());
    EXPECT_EQ(tokenizer->decode(ids), std::string("the") + invalid + "the");
  }
  // SentencePiece writes U+FFFD for each of them.
  const auto pieces = open_tokenizer(golden("bpe.model"));
  EXPECT_EQ(pieces->encode("a\xff\xc3z"), pieces->encode("a\ufffd\ufffdz"));
}

TEST(Tokenizer, StreamHoldsCharactersBackUntilTheyAreWhole) {
  const auto bytes = open_tokenizer("byte");
  const auto told = [&](const std::string& text) {
    TextStream stream(*bytes);
    std::vector<std::string> parts;
    for (const char c : text) parts.push_back(stream.push(static_cast<unsigned char>(c)));
    parts.push_back(stream.finish());
    return parts;
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(told("a\u00e9"), (Parts{"a", "", "\u00e9", ""}));
  EXPECT_EQ(told("\U0001f600"), (Parts{"", "", "", "\U0001f600", ""}));
  EXPECT_EQ(told("\xe4\xbd"), (Parts{"", "", "\ufffd"}));
  EXPECT_EQ(told("\xe4z"), (Parts{"", "\ufffdz", ""}));
  EXPECT_EQ(told("\xff"), (Parts{"\ufffd", ""}));
  EXPECT_EQ(told("\xed\xa0"), (Parts{"", "\ufffd\ufffd", ""}));
}

TEST(Tokenizer, SpecialIdsAreThoseOfTheFilesRules) {
  const auto llama3 = open_tokenizer(golden("llama3.json"));
  const Ids begin = llama3->encode("<|begin|>"), end = llama3->encode("<|endoftext|>");
  EXPECT_EQ(llama3->prefix_ids(), begin);
  EXPECT_EQ(llama3->suffix_ids(), end);  // once, although it is also the EOS
  EXPECT_EQ(llama3->eos(), end.at(0));
  EXPECT_EQ(llama3->bos(), std::nullopt);
  const auto llama2 = open_tokenizer(golden("llama2.json"));
  EXPECT_EQ(llama2->prefix_ids(), Ids{1});
  EXPECT_EQ(llama2->suffix_ids(), Ids{2});
  EXPECT_EQ(open_tokenizer(golden("bpe.model"))->prefix_ids(), Ids{});
  EXPECT_EQ(open_tokenizer(golden("bpe.model"))->suffix_ids(), Ids{2});

  const TemporaryFolder folder;
  for (const char* file : {"llama3.json", "bpe.model"})
    std::filesystem::copy_file(golden(file),
                               folder.path(std::string("tokenizer") +
                                           std::string(file).substr(std::string(file).find('.'))));
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<|begin|>"}, "eos_token": "Q", "add_bos_token": true})");
  const auto configured = open_tokenizer(folder.path(""));
  EXPECT_EQ(configured->bos(), begin.at(0));
  EXPECT_EQ(configured->decode(Ids{configured->eos().value_or(0)}), "Q");
  EXPECT_EQ(configured->suffix_ids(), (Ids{end.at(0), configured->eos().value_or(0)}));
  EXPECT_ERROR(open_tokenizer(folder.path("tokenizer.model")),
               "names the token '<|begin|>', which the SentencePiece model lacks");
  const auto model = open_tokenizer(golden("bpe.model"));
  std::int32_t id = 259;  // behind the bytes
  while (model->bytes_of(id).find(' ') != std::string::npos) ++id;
  const auto& piece = model->bytes_of(id);
  folder.write("tokenizer_config.json",
               nlohmann::json{{"add_bos_token", true}, {"eos_token", piece}}.dump());
  const auto named = open_tokenizer(folder.path("tokenizer.model"));
  EXPECT_EQ(named->prefix_ids(), Ids{1});
  EXPECT_EQ(named->eos(), id);
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreRefused) {
  const auto tokenizer = open_tokenizer(golden("gpt2.json"));
  EXPECT_ERROR(tokenizer->decode(Ids{-1}), "token id -1");
  EXPECT_ERROR(tokenizer->decode(Ids{900}), "vocabulary of 900");
}

TEST(Tokenizer, KnowsItsControlTokens) {
  const auto texts = [](const std::string& file) {
    std::string all;
    for (const auto& token :
         open_tokenizer(test::source_file("tests/tokenizer/golden/") + file)->control_tokens())
      all += token.text + (token.found_in_text ? " " : "- ");
    return all;
  };
  EXPECT_EQ(texts("qwen.json"), "<|endoftext|> <|im_start|> <|im_end|> <think> </think> ");
  EXPECT_EQ(texts("mistral3.model").substr(0, 17), "<s>- </s>- [INST]");
  EXPECT_EQ(texts("mistral3.json").substr(0, 21), "<unk> <s> </s> [INST]");
  EXPECT_TRUE(open_tokenizer("byte")->control_tokens().empty());
}

}  // namespace
}  // namespace llamesh::tokenizer
