// Compares the model families' pipelines with the tokenizers library
// (golden/make_families.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "source_file.hpp"
#include "support.hpp"
#include "tokenizer/newer_characters.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const json& golden() {
  static const json all = [] {
    std::ifstream in(test::source_file("tests/tokenizer/golden/families.json"));
    return json::parse(in);
  }();
  return all;
}

std::shared_ptr<const Tokenizer> open_pipeline(const json& pipeline) {
  json tokenizer = golden().at("tokenizer");
  tokenizer["normalizer"] = pipeline.value("normalizer", json());
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", pipeline.at("steps")}};
  return parse_hugging_face("t.json", tokenizer.dump());
}

Ids expected_ids(const json& pipeline, std::size_t text) {
  const json& told = pipeline.at("ids").at(text);
  if (told.is_number()) return expected_ids(golden().at("pipelines").at(told.get<int>()), text);
  std::istringstream numbers(told.get<std::string>());
  Ids ids;
  for (std::string id; numbers >> id;) ids.push_back(std::stoi(id, nullptr, 36));
  return ids;
}

TEST(TokenizerFamilies, IdsAreThoseOfTheLibrary) {
  EXPECT_EQ(golden().at("pipelines").size(), 13U);
  EXPECT_GT(golden().at("texts").size(), 100U);
  for (const json& pipeline : golden().at("pipelines")) {
    const auto tokenizer = open_pipeline(pipeline);
    for (std::size_t i = 0; i < golden().at("texts").size(); ++i) {
      const auto text = golden().at("texts").at(i).get<std::string>();
      EXPECT_EQ(tokenizer->encode(text), expected_ids(pipeline, i))
          << pipeline.at("families") << ": " << golden().at("texts").at(i);
      if (pipeline.contains("normalizer")) continue;
      EXPECT_EQ(tokenizer->decode(expected_ids(pipeline, i)), text) << pipeline.at("families");
    }
  }
}

TEST(TokenizerFamilies, CutTextHasTheIdsOfTheWholeText) {
  std::string text;
  for (const json& part : golden().at("texts"))
    text += part.get<std::string>() + "\n/ the Heaven and it's\nearth.\n/ x!\n/";
  for (const json& pipeline : golden().at("pipelines")) {
    const auto tokenizer = open_pipeline(pipeline);
    const Ids whole = tokenizer->encode(text);
    for (std::size_t step = 1; step < 400; step = step * (test::sanitized ? 8 : 2) + 1) {
      Ids ids;
      std::size_t cuts = 0;
      for (std::string_view rest = text; !rest.empty(); ++cuts) {
        const auto cut = tokenizer->next_cut(rest, std::min(step, rest.size()));
        tokenizer->encode_chunk(rest.substr(0, cut), cuts == 0 ? Chunk::first : Chunk::continuation,
                                ids);
        rest.remove_prefix(cut);
      }
      EXPECT_EQ(ids, whole) << pipeline.at("families") << ", chunks of " << step << " bytes";
      EXPECT_GT(cuts, 10U) << pipeline.at("families");  // every pipeline can be cut
    }
  }
}

TEST(TokenizerFamilies, ASplitAtReplacedSpacesDoesNothing) {
  const auto open_gemma = [](const json& pre_tokenizer) {
    std::ifstream in(test::source_file("tests/tokenizer/golden/gemma.json"));
    json tokenizer = json::parse(in);
    if (!pre_tokenizer.is_string()) tokenizer["pre_tokenizer"] = pre_tokenizer;
    return parse_hugging_face("t.json", tokenizer.dump());
  };
  const auto split = [](const std::string& kind, const std::string& behavior) {
    return json{{"type", "Split"}, {"pattern", {{kind, " "}}}, {"behavior", behavior}};
  };
  const auto gemma = open_gemma("as it is");
  for (const json& other : {json(), split("Regex", "Isolated"), split("String", "MergedWithNext"),
                            json{{"type", "Sequence"}, {"pretokenizers", json::array()}}})
    for (const json& text : golden().at("texts"))
      EXPECT_EQ(open_gemma(other)->encode(text.get<std::string>()),
                gemma->encode(text.get<std::string>()))
          << other << ": " << text;
}

/// Returns what the pattern matches in the text.
std::vector<std::string> matches(const std::string& regex, const std::string& text,
                                 Characters characters) {
  const Pattern pattern("here", regex);
  Pattern::Matcher matcher(pattern);
  std::vector<std::string> found;
  auto match = matcher.find(text, 0, characters);
  for (; match; match = matcher.find(text, match->end, characters))
    found.push_back(text.substr(match->begin, match->end - match->begin));
  return found;
}

TEST(TokenizerFamilies, PatternsMatchWhatTheLibraryMatches) {
  using Parts = std::vector<std::string>;
  for (const auto characters : {Characters::older, Characters::newer}) {
    const auto found = [&](const std::string& regex, const std::string& text) {
      return matches(regex, text, characters);
    };
    EXPECT_EQ(found("a$", "a\nba\ra\u2028a"), (Parts{"a", "a"}));
    EXPECT_EQ(found("\\s+$", "a \r\n b  \n"), (Parts{" \r", "  \n"}));
    EXPECT_EQ(found("[a-d&&[^b\\]d]]+", "abcd]"), (Parts{"a", "c"}));
    EXPECT_EQ(found("[\\p{L}&&[^\\p{Han}]]{2}", "ab\u6f22\u3042\u3044\u3005\u00e9e"),
              (Parts{"ab", "\u3042\u3044", "\u00e9e"}));
    EXPECT_EQ(found("\\p{Han}", "\u3001\u3007\u30fc\U00031350"), (Parts{"\u3007", "\U00031350"}));
    EXPECT_EQ(found("\\P{Han}+", "\u3001\u3007\u30fc"), (Parts{"\u3001", "\u30fc"}));
    EXPECT_EQ(found("a\\b", "a a\u0301 a_ a\u00b2 a\u2074 a\u24b6 a-a"),
              (Parts{"a", "a", "a", "a"}));
  }
  // An emoji from Unicode 15 and a Garay digit from Unicode 16.
  EXPECT_EQ(matches("\\p{S}+", "a\U0001fae8\u20ac", Characters::newer),
            (Parts{"\U0001fae8\u20ac"}));
  EXPECT_EQ(matches("[^\\d]+", "1\U00010d40a", Characters::newer), (Parts{"a"}));
  EXPECT_EQ(matches("\\P{N}+", "1\U00010d40a", Characters::newer), (Parts{"a"}));
}

TEST(TokenizerFamilies, NewerCharactersAreFound) {
  for (const char* text :
       {"\u0897", "a\u1c8a", "\U0001fae8", "\u6f22\U00031350", "e\u2427\U0001f600"})
    EXPECT_TRUE(has_newer_characters(text)) << text;
  for (const char* text :
       {"", "a", "\u00e9\u0301", "\u0896\u0898", "\U0001fae7", "\u6f22\U0003134a"})
    EXPECT_FALSE(has_newer_characters(text)) << text;
}

}  // namespace
}  // namespace llamesh::tokenizer
