// Input that is not a tokenizer, or an unsupported one, is rejected by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/files.hpp"
#include "source_file.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {
namespace {

using nlohmann::json;
using test::TemporaryFolder;

std::string golden_file(const std::string& file) {
  return test::source_file("tests/tokenizer/golden/") + file;
}

json read(const std::string& file) {
  std::ifstream in(golden_file(file));
  return json::parse(in);
}

void parse(const json& tokenizer) {
  parse_hugging_face("t.json", tokenizer.dump());
}

/// Expects `file`, with the value at a JSON pointer replaced, to be rejected with a text that
/// contains `part`.
void refused(const std::string& file, const std::string& pointer, const json& value,
             const std::string& part) {
  json tokenizer = read(file);
  tokenizer[json::json_pointer(pointer)] = value;
  EXPECT_ERROR(parse(tokenizer), part);
}

TEST(TokenizerRefusals, UnsupportedPartsAreNamed) {
  parse(read("gpt2.json"));
  refused("gpt2.json", "/novelty", 1, "t.json: 'novelty' is not supported");
  refused("gpt2.json", "/model/type", "Unigram", "a model of type 'Unigram' is not supported");
  refused("gpt2.json", "/model/dropout", 0.1, "'dropout: 0.1' is not supported");
  refused("gpt2.json", "/model/continuing_subword_prefix", "##", "continuing_subword_prefix");
  refused("gpt2.json", "/normalizer", {{"type", "NFKC"}}, "t.json.normalizer of type 'NFKC'");
  refused("gpt2.json", "/pre_tokenizer", {{"type", "Whitespace"}}, "'Whitespace' is not supported");
  refused("gpt2.json", "/pre_tokenizer", nullptr, "only ByteLevel");
  refused("gpt2.json", "/decoder", {{"type", "WordPiece"}}, "decoder of type 'WordPiece'");
  refused("gpt2.json", "/post_processor", {{"type", "BertProcessing"}}, "'BertProcessing'");
  refused("gpt2.json", "/added_tokens/0/single_word", true, "'single_word: true' is not supported");
  refused("llama3.json", "/post_processor/single/1/Sequence/id", "B", "one sequence A");
  refused("llama2.json", "/normalizer/normalizers/1/content", "_", "Replace other than");
  refused("llama2.json", "/added_tokens/0/normalized", true,
          "normalized: true' together with a normalizer is not supported; where there is a "
          "tokenizer.model");
  refused("llama2.json", "/model/byte_fallback", false, "needs byte_fallback");
  refused("metaspace.json", "/pre_tokenizer/split", true, "split: true");
  refused("gemma.json", "/pre_tokenizer/invert", true, "the normalizer of Llama 2 or Gemma");
  refused("gemma.json", "/pre_tokenizer/pattern/String", "  ",
          "the normalizer of Llama 2 or Gemma");
}

TEST(TokenizerRefusals, PatternsWithoutEnd) {
  json tokenizer = read("gpt2.json");
  const json split = {{"type", "Split"}, {"pattern", {{"String", "ab"}}}, {"behavior", "Isolated"}};
  auto steps = json::array();
  for (int i = 0; i < 5'000; ++i) steps.push_back(split);
  steps.push_back(tokenizer["pre_tokenizer"]);
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  EXPECT_ERROR(parse_hugging_face("t.json", tokenizer.dump())->encode("ab"),
               "t.json.pre_tokenizer: more than 16 patterns");
}

/// Looks up many ids among many tokens: with a linear search, this would run into the test's time
/// limit.
TEST(TokenizerRefusals, ALongTemplateIsRead) {
  json tokenizer = read("llama3.json");
  auto& vocabulary = tokenizer["model"]["vocab"];
  for (int i = 2000; i < 60'000; ++i) vocabulary["more " + std::to_string(i)] = i;
  auto& ids = tokenizer["post_processor"]["special_tokens"]["<|begin|>"]["ids"];
  for (int i = 2000; i < 60'000; ++i) ids.push_back(i);
  EXPECT_EQ(parse_hugging_face("t.json", tokenizer.dump())->prefix_ids().size(), 58'001U);
}

TEST(TokenizerRefusals, MalformedFilesAreExplained) {
  for (const char* text : {"", "{", "[]", "7", "{\"a\":1,}", "\xff", "{\"model\":{}}", "null"})
    EXPECT_ERROR(parse_hugging_face("t.json", text), "t.json");
  EXPECT_ERROR(parse_hugging_face("t.json", std::string(100'000, '[')), "nested more than 32");
  const std::string whole = read("gpt2.json").dump();
  EXPECT_ERROR(parse_hugging_face("t.json", whole + std::string("\0 more", 6)),
               "there is a NUL at byte " + std::to_string(whole.size() + 1));
  refused("gpt2.json", "/model/vocab/the", -1, "-1 is no token id");
  refused("gpt2.json", "/model/vocab/the", 1e10, "instead of a token id");
  refused("gpt2.json", "/model/vocab/the", 4294967296, "4294967296 is no token id");
  refused("gpt2.json", "/model/vocab/the", 2000000000, "far more than there are tokens");
  refused("gpt2.json", "/model/vocab/the", 5, "have the same id 5");
  refused("gpt2.json", "/model/merges/3", "a b c", "not two tokens");
  refused("gpt2.json", "/model/merges/3", 4, "a string or a pair of strings");
  refused("gpt2.json", "/model/merges/3", "no such", "'no' is not in the vocabulary");
  refused("gpt2.json", "/added_tokens/0/id", 7,
          "has id 7 here, but the tokenizers library gives it 0");
  refused("llama3.json", "/post_processor/special_tokens/<|begin|>/ids/0", 70000,
          "no token with id");
  json missing = read("gpt2.json");
  missing["model"]["vocab"].erase("Q");
  const auto without = parse_hugging_face("t.json", missing.dump());
  EXPECT_EQ(without->decode(without->encode("for R")), "for R");
  EXPECT_ERROR(without->encode("for Q"), "t.json: the vocabulary has no token 'Q' for the byte 81");
  missing["model"].erase("merges");
  EXPECT_ERROR(parse(missing), "t.json.model: 'merges' is missing");
}

TEST(TokenizerRefusals, FilesThatAreNoTokenizer) {
  const TemporaryFolder folder;
  EXPECT_ERROR(open_tokenizer("tokens.txt"), "'tokens.txt' does not exist");
  EXPECT_ERROR(open_tokenizer(folder.write("t.txt", "x")), "of an unknown kind; give byte");
  EXPECT_ERROR(open_tokenizer(folder.path("no.json")), "cannot be opened: No such file");
  EXPECT_ERROR(open_tokenizer(folder.path("no.model")), "cannot be opened: No such file");
  EXPECT_ERROR(open_tokenizer(folder.path("")), "neither tokenizer.json nor tokenizer.model");
  EXPECT_ERROR(open_tokenizer(folder.write("empty.json", "")), "is empty");
  EXPECT_ERROR(open_tokenizer(folder.write("a.model", "no model")), "is no SentencePiece model");
  EXPECT_ERROR(open_tokenizer(folder.write("b.model", std::string(1000, '\0'))),
               "no SentencePiece");
  std::filesystem::create_directory(folder.path("c.json"));
  EXPECT_ERROR(open_tokenizer(folder.path("c.json") + "/"), "neither tokenizer.json");
}

TEST(TokenizerRefusals, RegularExpressionsThatCouldMeanAnotherThing) {
  for (const std::string regex : {"(?<=a)b",    "^a",
                                  "a$+",        "\\b?word",
                                  "\\B",        "\\w+",
                                  "\\h",        "\\X",
                                  "(?>a)",      "[[:alpha:]]",
                                  "[a&&b]",     "[a&&[b]]",
                                  "[^a&&[^b]]", "[&&[^b]]",
                                  "[a&&[^]]]",  "[a&&[^b]c]",
                                  "[a&&[^b]",   "[a&&[^b&&[^c]]]",
                                  "[a\\b]",     "\\p{Greek}",
                                  "\\p{C}",     "[\\P{L}]",
                                  "\\pL",       "a{2}+",
                                  "a{,3}",      "{",
                                  "\\u0041",    "(?:(*ACCEPT)a)?b",
                                  "(*UTF)a",    "]",
                                  "[]a]",       "[^\\S]",
                                  "\\1",        "(?i)a",
                                  "a\\"})
    EXPECT_ERROR(Pattern("here", regex), "here: '");
  for (const std::string regex : {"(a", "a)", "[a", "*a", "(?:", "\\p{L}{3,2}"})
    EXPECT_ERROR(Pattern("here", regex), "is malformed");
  for (const std::string regex : {"", "a*", "(?=a)", "a|", "$", "\\b"})
    EXPECT_ERROR(Pattern("here", regex), "can match no characters");
  EXPECT_ERROR(Pattern("here", std::string(5000, 'a')), "too long");
}

TEST(TokenizerRefusals, RegularExpressionsThatNeverEnd) {
  const Pattern pattern("here", "(a+)+[bd]");
  Pattern::Matcher matcher(pattern);
  EXPECT_TRUE(matcher.find("xaab", 0));
  EXPECT_ERROR(matcher.find(std::string(200, 'a') + "c", 0), "cannot cut this text");
}

}  // namespace
}  // namespace llamesh::tokenizer
