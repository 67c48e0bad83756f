// Compares every behavior of a Split with the tokenizers library (golden/make_variants.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "source_file.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {
namespace {

nlohmann::json read_golden_json(const std::string& file) {
  std::ifstream in(test::source_file("tests/tokenizer/golden/") + file);
  return nlohmann::json::parse(in);
}

/// Opens gpt2.json with this step before its bytes.
std::shared_ptr<const Tokenizer> open_with_split(const nlohmann::json& split) {
  auto json = read_golden_json("gpt2.json");
  json["pre_tokenizer"]["use_regex"] = false;
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, json["pre_tokenizer"]}}};
  return parse_hugging_face("t.json", json.dump());
}

TEST(TokenizerSplit, EveryBehaviorHasTheIdsOfTheLibrary) {
  const auto golden = read_golden_json("splits.json");
  EXPECT_EQ(golden.at("splits").size(), 50U);
  for (const auto& item : golden.at("splits")) {
    const auto tokenizer = open_with_split(item.at("split"));
    for (std::size_t i = 0; i < golden.at("texts").size(); ++i) {
      const auto text = golden.at("texts").at(i).get<std::string>();
      EXPECT_EQ(tokenizer->encode(text), item.at("ids").at(i).get<std::vector<std::int32_t>>())
          << item.at("split") << ": " << text;
    }
  }
}

TEST(TokenizerSplit, CutTextHasTheIdsOfTheWholeText) {
  std::string text;
  for (const char* part : {"the heaven and", " 1611 ", "A.B.\nGod 7\n\nthe", "  earth's\n", "th"})
    text += part;
  for (int i = 0; i < 4; ++i) text += text;
  std::size_t without_cuts = 0;
  const auto golden = read_golden_json("splits.json");
  for (const auto& item : golden.at("splits")) {
    const auto tokenizer = open_with_split(item.at("split"));
    std::vector<std::int32_t> ids;
    std::size_t cuts = 0;
    for (std::string_view rest = text; !rest.empty(); ++cuts) {
      const auto cut = tokenizer->next_cut(rest, 1);
      tokenizer->encode_chunk(rest.substr(0, cut), cuts == 0 ? Chunk::first : Chunk::continuation,
                              ids);
      rest.remove_prefix(cut);
    }
    EXPECT_EQ(ids, tokenizer->encode(text)) << item.at("split");
    without_cuts += cuts == 1 ? 1 : 0;
  }
  // Llama 3's pattern, isolated or with its matches kept, is cut.
  EXPECT_EQ(without_cuts, 50U - 3U);
}

TEST(TokenizerSplit, OtherBehaviorsAreRefused) {
  const nlohmann::json split = {
      {"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "isolated"}};
  try {
    open_with_split(split);
    ADD_FAILURE();
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(),
                 "t.json.pre_tokenizer.pretokenizers[0].behavior: 'isolated' is not supported");
  }
}

}  // namespace
}  // namespace llamesh::tokenizer
