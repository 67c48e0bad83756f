// Compares tokens that are named beside a tokenizer file with transformers
// (golden/make_variants.py).
#include "tokenizer/tokenizer_config.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/files.hpp"
#include "source_file.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {
namespace {

std::string golden_path(const std::string& file) {
  return test::source_file("tests/tokenizer/golden/") + file;
}

nlohmann::json read_json_file(const std::string& file) {
  std::ifstream in(golden_path(file));
  return nlohmann::json::parse(in);
}

std::string text_of(const nlohmann::json& files, const std::string& file) {
  return files.contains(file) ? files.at(file).dump() : "";
}

/// Returns the files beside a tokenizer, by their names without .json.
CompanionFiles companions(const nlohmann::json& files) {
  return {text_of(files, "tokenizer_config"), text_of(files, "special_tokens_map"),
          text_of(files, "added_tokens")};
}

std::shared_ptr<const Tokenizer> open_beside(const std::string& file, const nlohmann::json& files) {
  auto json = read_json_file(file);
  for (const auto& token : files.value("more", nlohmann::json::array()))
    json["added_tokens"].push_back(token);
  return parse_hugging_face("folder/tokenizer.json", json.dump(), companions(files));
}

TEST(TokenizerConfig, NamedTokensHaveTheIdsOfTransformers) {
  const auto golden = read_json_file("special_tokens.json");
  EXPECT_GT(golden.at("cases").size(), 20U);
  for (const auto& item : golden.at("cases")) {
    const auto tokenizer = open_beside("gpt2.json", item);
    EXPECT_EQ(tokenizer->vocab_size(), item.at("size").get<std::int64_t>()) << item.at("why");
    if (!item.at("bos").is_null()) {
      EXPECT_EQ(tokenizer->bos(), item.at("bos").get<std::int32_t>()) << item.at("why");
    }
    // Without a name, llamesh takes one of the usual ones.
    const auto eos = item.at("eos").is_null() ? 0 : item.at("eos").get<std::int32_t>();
    EXPECT_EQ(tokenizer->eos(), eos) << item.at("why");
    for (std::size_t i = 0; i < golden.at("texts").size(); ++i) {
      const auto ids = tokenizer->encode(golden.at("texts").at(i).get<std::string>());
      EXPECT_EQ(ids, item.at("ids").at(i).get<std::vector<std::int32_t>>())
          << item.at("why") << ": " << golden.at("texts").at(i);
    }
  }
}

TEST(TokenizerConfig, AFolderIsReadWithAllItsFiles) {
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(golden_path("gpt2.json"), folder.path("tokenizer.json"));
  folder.write("added_tokens.json", R"({"<x>": 900})");
  folder.write("special_tokens_map.json", R"({"eos_token": "<x>", "pad_token": "<y>"})");
  folder.write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const auto tokenizer = open_tokenizer(folder.path(""));
  EXPECT_EQ(tokenizer->eos(), 900);
  EXPECT_EQ(tokenizer->encode("<y><x>"), (std::vector<std::int32_t>{901, 900}));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{901, 900}), "<y><x>");
}

/// A token that the files name as special is none in the text of a message.
TEST(TokenizerConfig, ContentDoesNotBecomeANamedToken) {
  const auto tokenizer = open_beside("gpt2.json", {{"tokenizer_config", {{"pad_token", "<x>"}}},
                                                   {"added_tokens", {{"<y>", 900}}}});
  std::vector<std::int32_t> ids;
  tokenizer->encode("<x><y>", Chunk::first, ids, SpecialTokens::text);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{28, 88, 30, 900}));
}

void refused_beside(const nlohmann::json& files, const std::string& message,
                    const std::string& file = "gpt2.json") {
  EXPECT_ERROR(open_beside(file, files), message);
}

TEST(TokenizerConfig, IdsThatTheLibraryWouldNotGiveAreRefused) {
  const nlohmann::json x = {{"content", "<x>"}};
  const auto decoder = [&](const char* id) {
    return nlohmann::json{{"tokenizer_config", {{"added_tokens_decoder", {{id, x}}}}}};
  };
  refused_beside(
      decoder("901"),
      "folder/tokenizer_config.json.added_tokens_decoder.901: '<x>' has id 901 here, but the "
      "tokenizers library gives it 900, the next free id; correct the id");
  refused_beside(decoder("7"), "'<x>' has id 7 here, but the tokenizers library gives it 900");
  refused_beside(decoder("-1"), "added_tokens_decoder: '-1' is no token id");
  refused_beside(decoder("9e2"), "'9e2' is no token id");
  refused_beside(
      {{"added_tokens", {{"<x>", 905}}}},
      "folder/added_tokens.json.<x>: '<x>' has id 905 here, but the tokenizers library gives "
      "it 900, the next free id");
  refused_beside({{"added_tokens", {{"<|endoftext|>", 900}}}},
                 "gives it 0, its id in the tokenizer");
  refused_beside({{"added_tokens", {{"<x>", "900"}}}}, "is string instead of a token id");
  refused_beside({{"more", {{{"id", 905}, {"content", "<x>"}}}}},
                 "folder/tokenizer.json.added_tokens[1]: '<x>' has id 905 here, but the tokenizers "
                 "library gives it 900, the next free id");
}

TEST(TokenizerConfig, UnclearNamesAreRefused) {
  const auto config = [](const nlohmann::json& value) {
    return nlohmann::json{{"tokenizer_config", value}};
  };
  refused_beside(
      config({{"split_special_tokens", true}}),
      "folder/tokenizer_config.json: 'split_special_tokens: true' is not supported; set it to "
      "false");
  refused_beside(config({{"image_token", "<x>"}}),
                 "folder/tokenizer_config.json.image_token: '<x>' is not among the added tokens in "
                 "tokenizer.json; list it there, or with its id in added_tokens_decoder");
  refused_beside(config({{"extra_special_tokens", {{"image_token", "<x>"}}}}),
                 "extra_special_tokens.image_token: '<x>' is not among the added tokens");
  refused_beside(
      config({{"bos_token", "<x>"}, {"eos_token", {{"content", "<x>"}, {"lstrip", true}}}}),
      "eos_token: '<x>' has other flags than where it is named before");
  refused_beside(config({{"bos_token", {{"content", "<x>"}, {"single_word", true}}}}),
                 "'single_word: true' is not supported");
  refused_beside(config({{"bos_token", 5}}), "bos_token is number instead of a token");
  refused_beside(config({{"eos_token", ""}}), "name an empty token as BOS or EOS; remove it");
  refused_beside(config({{"extra_special_tokens", {5}}}),
                 "extra_special_tokens[0] is number instead of a token");
  refused_beside(config({{"added_tokens_decoder", {{"900", "<x>"}}}}),
                 "is string instead of an object");
  refused_beside({{"special_tokens_map", {{"eos", "<x>"}}}},
                 "folder/special_tokens_map.json: 'eos' is not supported; remove it");
  refused_beside({{"special_tokens_map", nlohmann::json::array()}},
                 "is array instead of an object");
  refused_beside({{"added_tokens", {{"<x>", 900}}}},
                 "added_tokens.json.<x>: '<x>' with 'normalized: true' together with a normalizer",
                 "llama2.json");
}

TEST(TokenizerConfig, ASentencePieceModelHasAllNamedTokens) {
  std::ifstream in(golden_path("bpe.model"), std::ios::binary);
  const std::string model(std::istreambuf_iterator<char>(in), {});
  const auto open = [&](const nlohmann::json& files) {
    return parse_sentencepiece("folder/tokenizer.model", model, companions(files));
  };
  EXPECT_EQ(open({{"tokenizer_config", {{"pad_token", "</s>"}}},
                  {"special_tokens_map", {{"unk_token", {{"content", "<unk>"}}}}},
                  {"added_tokens", {{"<s>", 1}}}})
                ->bos(),
            1);
  for (const nlohmann::json& files :
       {nlohmann::json{{"tokenizer_config", {{"pad_token", "<x>"}}}},
        nlohmann::json{{"tokenizer_config", {{"extra_special_tokens", {"<x>"}}}}},
        nlohmann::json{
            {"tokenizer_config", {{"added_tokens_decoder", {{"700", {{"content", "<x>"}}}}}}}},
        nlohmann::json{{"special_tokens_map", {{"additional_special_tokens", {"<x>"}}}}},
        nlohmann::json{{"added_tokens", {{"<x>", 700}}}}})
    EXPECT_ERROR(open(files), "'<x>', which the SentencePiece model lacks; use a tokenizer.json");
  EXPECT_ERROR(open({{"added_tokens", {{"</s>", 1}}}}),
               "folder/added_tokens.json.</s>: '</s>' has id 1 here, but 2 in the SentencePiece");
  EXPECT_ERROR(open({{"tokenizer_config", {{"split_special_tokens", true}}}}),
               "'split_special_tokens: true' is not supported");
}

}  // namespace
}  // namespace llamesh::tokenizer
