#include "model/description/config_json.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.hpp"
#include "model/description/parameters.hpp"
#include "source_file.hpp"

namespace llamesh::model {
namespace {

/// Returns a small model's config.json with `more` keys in front. Duplicate keys are refused, so
/// list keys to be replaced in `without`.
std::string config_text(const std::string& more = "", const std::string& without = "") {
  const std::pair<std::string, std::string> keys[] = {{"architectures", R"(["LlamaForCausalLM"])"},
                                                      {"model_type", "\"llama\""},
                                                      {"hidden_size", "64"},
                                                      {"intermediate_size", "128"},
                                                      {"num_hidden_layers", "2"},
                                                      {"num_attention_heads", "8"},
                                                      {"vocab_size", "100"}};
  std::string text = "{" + more;
  for (const auto& [key, value] : keys) {
    if (key == without) continue;
    if (text.size() > 1) text += ", ";
    text.append(1, '"').append(key).append("\": ").append(value);
  }
  return text + "}";
}

std::string error_of_config(const std::string& text) {
  try {
    parse_config_json(text, "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_EQ(std::string(error.what()).find("config.json: "), 0U) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(ConfigJson, OldModelsSayLittle) {
  const auto c = parse_config_json(config_text(), "config.json");
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);  // transformers' default
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_FALSE(c.rope_scaling);
  EXPECT_FALSE(c.tie_word_embeddings);
}

TEST(ConfigJson, EverythingSaid) {
  const auto c = parse_config_json(
      config_text(
          R"("num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-05, "rope_theta": 5e5,
                "tie_word_embeddings": true, "initializer_range": 0.04, "hidden_act": "silu",
                "attention_bias": false, "mlp_bias": false, "attention_dropout": 0.0,
                "eos_token_id": [1, 2], "rope_scaling": null, "torch_dtype": "bfloat16")"),
      "config.json");
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.initializer_range, 0.04);
}

TEST(ConfigJson, RopeScalingInEverySpelling) {
  const std::string numbers =
      R"("factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192)";
  for (const std::string head :
       {R"("rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", )",
        R"("rope_theta": 5e5, "rope_scaling": {"type": "llama3", )",
        R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", )"}) {
    const auto c = parse_config_json(config_text(head + numbers + "}"), "config.json");
    EXPECT_EQ(c.rope_theta, 5e5) << head;
    ASSERT_TRUE(c.rope_scaling) << head;
    EXPECT_EQ(c.rope_scaling->factor, 32);
    EXPECT_EQ(c.rope_scaling->high_freq_factor, 4);
    EXPECT_EQ(c.rope_scaling->original_max_position_embeddings, 8192);
    // Writing and reading back gives the same config.
    const auto again = parse_config_json(to_config_json(c, "bfloat16", ""), "config.json");
    EXPECT_EQ(to_config_json(again), to_config_json(c));
  }
  EXPECT_FALSE(parse_config_json(config_text(R"("rope_scaling": {"rope_type": "default"})"), "")
                   .rope_scaling);
  EXPECT_NE(error_of_config(config_text(R"("rope_scaling": {"rope_type": "llama3", "factor": 8})"))
                .find("low_freq_factor is missing"),
            std::string::npos);
  for (const std::string type : {"dynamic", "longrope"})
    EXPECT_NE(
        error_of_config(config_text(R"("rope_scaling": {"type": ")" + type + R"(", "factor": 2})"))
            .find("rope_type is '" + type + "'"),
        std::string::npos);
}

/// As in every version of transformers.
TEST(ConfigJson, RopeScalingCountsBeforeRopeParameters) {
  const std::string parameters =
      R"("rope_parameters": {"rope_type": "default", "rope_theta": 7e3})";
  const auto c = parse_config_json(
      config_text(parameters + R"(, "rope_theta": 5e3, "max_position_embeddings": 64,
                                   "rope_scaling": {"rope_type": "yarn", "factor": 4})"),
      "config.json");
  ASSERT_TRUE(c.rope_scaling);
  EXPECT_EQ(c.rope_scaling->original_max_position_embeddings, 64);
  EXPECT_EQ(c.rope_theta, 5e3);
  const auto empty =
      parse_config_json(config_text(parameters + R"(, "rope_scaling": {})"), "config.json");
  EXPECT_FALSE(empty.rope_scaling);
  EXPECT_EQ(empty.rope_theta, 7e3);
}

TEST(ConfigJson, OriginalPositionsBesideRopeScaling) {
  const auto c = parse_config_json(
      config_text(R"("original_max_position_embeddings": 16, "max_position_embeddings": 64,
                     "rope_scaling": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1,
                     "high_freq_factor": 4, "original_max_position_embeddings": 32})"),
      "config.json");
  ASSERT_TRUE(c.rope_scaling);
  EXPECT_EQ(c.rope_scaling->original_max_position_embeddings, 16);
}

TEST(ConfigJson, WhatIsNotComputedIsNamed) {
  const std::tuple<std::string, std::string, std::string> table[] = {
      {R"("attention_bias": 1)", "", "attention_bias: expected true or false"},
      {R"("hidden_act": "gelu")", "", "hidden_act is 'gelu'"},
      {R"("attention_dropout": 0.1)", "", "attention_dropout is 0.1"},
      {R"("quantization_config": {"bits": 4})", "", "quantization_config"},
      {R"("architectures": ["MixtralForCausalLM"])", "architectures", "MixtralForCausalLM"},
      {R"("architectures": ["LlamaForSequenceClassification"])", "architectures", "LlamaForSeq"},
      {R"("model_type": "qwen2")", "model_type", R"(model_type "qwen2")"},
      {R"("head_dim": 7)", "", "head_dim is 7"},
      {R"("logits_scaling": 8)", "", "logits_scaling is 8, and llamesh does not know this key"},
      {R"("num_key_value_heads": 3)", "", "not a multiple"},
  };
  for (const auto& [more, without, message] : table)
    EXPECT_NE(error_of_config(config_text(more, without)).find(message), std::string::npos)
        << more << ": " << error_of_config(config_text(more, without));
}

/// Returns an object that took minutes to parse before there was a limit.
std::string many_keys(int count) {
  std::string text = "{\"k\": 0";
  for (int i = 0; i < count; ++i) text += fmt::format(", \"k{}\": 0", i);
  return text + "}";
}

TEST(ConfigJson, BadFilesAreRefused) {
  const std::pair<std::string, std::string> table[] = {
      {"", "not JSON"},
      {"[]", "expected a JSON object"},
      {config_text() + std::string(1, '\0') + "x", "zero byte"},
      {config_text() + "x", "not JSON"},
      {"{\"a\": " + std::string(100000, '['), "deeper than 32"},
      {many_keys(200'000), "more than 20000 keys"},
      {R"({"a": 1, "a": 2})", "appears twice"},
      {R"({"b": {"a": 1, "a": 2}})", "appears twice"},
      {R"({"a": 1e999})", "out of range"},
      {config_text("", "hidden_size"), "hidden_size is missing"},
      {config_text(R"("hidden_size": "64")", "hidden_size"), "expected an integer"},
      {config_text(R"("hidden_size": -64)", "hidden_size"), "hidden_size is -64"},
      {config_text(R"("hidden_size": 0)", "hidden_size"), "hidden_size is 0"},
      {config_text(R"("vocab_size": 18446744073709551615)", "vocab_size"),
       "vocab_size is 18446744"},
      {config_text(R"("num_hidden_layers": 1000000)", "num_hidden_layers"), "allowed: [1, 10000]"},
      {config_text(R"("rms_norm_eps": -1)"), "above 0"},
      {config_text(R"("tie_word_embeddings": 1)"), "expected true or false"},
      {config_text(R"("rope_scaling": [1])"), "expected an object"},
      {config_text(R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                 "high_freq_factor": 4, "original_max_position_embeddings": 8192})"),
       "high_freq_factor 4 is not above low_freq_factor 4"},
  };
  for (const auto& [text, message] : table)
    EXPECT_NE(error_of_config(text).find(message), std::string::npos)
        << text.substr(0, 200) << ": " << error_of_config(text);
}

/// Mutated bytes give either a one-line error or a consistent model.
TEST(ConfigJson, Mutations) {
  constexpr unsigned seed = 20240608;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto good =
      config_text(R"("head_dim": 16, "rope_theta": 5e5, "rope_scaling": {"type": "default"})");
  const std::string likely = "{}[]\",:0123456789-.eE\\ \n\xff";
  int accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    auto text = good;
    const auto at = random() % text.size();
    switch (random() % 3) {
      case 0:
        text[at] = likely[random() % likely.size()];
        break;
      case 1:
        text.erase(at, 1 + random() % 8);
        break;
      default:
        text.insert(at, good, random() % good.size(), random() % 40);
    }
    if (error_of_config(text) != "no error") continue;
    ++accepted;
    EXPECT_GT(model::parameter_table(parse_config_json(text, "config.json")).numel(), 0);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 3750);
}

TEST(ConfigJson, AnotherConfigKeepsWhatIsNotTheShape) {
  const auto c = parse_config_json(config_text(), "config.json");
  const auto text = to_config_json(
      c, "bfloat16", R"({"bos_token_id": 17, "vocab_size": 5, "torch_dtype": "float32",
                         "rope_scaling": {"type": "yarn"}})");
  EXPECT_NE(text.find("\"bos_token_id\": 17"), std::string::npos);
  EXPECT_NE(text.find("\"torch_dtype\": \"bfloat16\""), std::string::npos);
  EXPECT_NE(text.find("\"vocab_size\": 100"), std::string::npos);
  EXPECT_EQ(text.find("yarn"), std::string::npos);
}

/// Returns a config's keys and values, with 15 digits of a number: yarn's attention_factor has a
/// logarithm, and processors differ in its last bit.
std::map<std::string, std::string> rounded(const ModelConfig& config) {
  const auto keys = nlohmann::json::parse(to_config_json(config)).flatten();
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : keys.items())
    values[key] =
        value.is_number_float() ? fmt::format("{:.15g}", value.get<double>()) : value.dump();
  return values;
}

/// As transformers 4.57 writes the golden folders (tests/model/golden/older_transformers.py).
TEST(ConfigJson, FoldersOfTransformers457AreReadAsTheGoldenOnes) {
  const std::filesystem::path golden = test::source_file("tests/model/golden");
  std::ifstream file(golden / "configs_4_57.json");
  ASSERT_TRUE(file);
  const auto configs = nlohmann::json::parse(file);
  for (const auto& [name, config] : configs.items()) {
    EXPECT_FALSE(config.contains("rope_parameters")) << name;  // which 5 has
    EXPECT_EQ(rounded(parse_config_json(config.dump(), "config.json")),
              rounded(read_config_json(golden / "hf" / name)))
        << name;
  }
  EXPECT_GT(configs.size(), 40);
}

}  // namespace
}  // namespace llamesh::model
