#include "model/description/multimodal.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "core/error.hpp"
#include "model/description/config_json.hpp"

namespace llamesh::model {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* text_shape = R"("hidden_size": 48, "intermediate_size": 80,
    "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "vocab_size": 101)";

/// Returns a config.json of the architecture with these keys, in JSON.
std::string whole_of(const std::string& architecture, const std::string& keys) {
  return fmt::format(R"({{"architectures": ["{}ForConditionalGeneration"], {}}})", architecture,
                     keys);
}

std::string with_text(const std::string& architecture, const std::string& text) {
  return whole_of(architecture, fmt::format(R"("model_type": "x", "text_config": {{{}}})", text));
}

ModelConfig language_config(const std::string& whole) {
  return parse_config_json(whole, "config.json");
}

std::string multimodal_error(const std::string& whole) {
  try {
    language_config(whole);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    return error.what();
  }
  return "no error";
}

/// As on the hub: llava-1.5-7b, whose text_config has only what differs from Llama's class.
TEST(Multimodal, SizesAreThoseOfTheTextClass) {
  const auto llava =
      language_config(with_text("Llava", R"("model_type": "llama", "vocab_size": 32064,
      "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "architectures": ["LlamaForCausalLM"])"));
  EXPECT_EQ(llava.family, "llama");
  EXPECT_EQ(llava.intermediate_size, 11008);
  EXPECT_EQ(llava.num_key_value_heads, 32);
  EXPECT_EQ(llava.vocab_size, 32064);
  const auto next = language_config(with_text("LlavaNext", R"("model_type": "mistral",
      "rope_theta": 1000000.0, "sliding_window": null, "vocab_size": 32064)"));
  EXPECT_EQ(next.family, "mistral");
  EXPECT_EQ(next.num_key_value_heads, 8);
  EXPECT_EQ(language_config(with_text("Gemma3", R"("num_hidden_layers": 34)")).vocab_size, 262208);
}

/// Qwen2-VL and Qwen2.5-VL have the language model's keys beside vision_config on the hub, and
/// transformers 4.57 writes text_config without architectures.
TEST(Multimodal, QwensFoldersAreReadFromAllVersions) {
  const auto on_hub = language_config(
      whole_of("Qwen2_5_VL", fmt::format(R"({}, "model_type": "qwen2_5_vl", "rope_theta": 1000000.0,
      "rms_norm_eps": 1e-06, "max_window_layers": 28, "use_sliding_window": false,
      "sliding_window": 32768, "tie_word_embeddings": true, "vision_start_token_id": 1,
      "vision_end_token_id": 2, "vision_token_id": 3, "image_token_id": 4, "video_token_id": 5,
      "vision_config": {{"hidden_size": 8}},
      "rope_scaling": {{"type": "mrope", "mrope_section": [16, 24, 24]}})",
                                         text_shape)));
  EXPECT_EQ(on_hub.family, "qwen2");
  EXPECT_TRUE(on_hub.tie_word_embeddings);
  EXPECT_FALSE(on_hub.rope_scaling);
  const auto by_4_57 =
      language_config(fmt::format(R"({{"model_type": "qwen2_5_vl", "text_config": {{{},
      "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl_text",
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": true,
      "image_token_id": null, "rope_scaling": {{"rope_type": "default", "type": "default",
      "mrope_section": [16, 24, 24]}}}}}})",
                                  text_shape));
  const auto by_5 = language_config(
      whole_of("Qwen2_5_VL", fmt::format(R"("tie_word_embeddings": true, "text_config": {{{},
      "model_type": "qwen2_5_vl_text", "rms_norm_eps": 1e-06, "rope_parameters":
      {{"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]}}}})",
                                         text_shape)));
  EXPECT_EQ(to_config_json(by_4_57), to_config_json(on_hub));
  EXPECT_EQ(to_config_json(by_5), to_config_json(on_hub));
  // The defaults are those of the class, which are not Qwen 2's.
  const auto defaults = language_config(with_text("Qwen2VL", text_shape));
  EXPECT_EQ(defaults.rms_norm_eps, 1e-5);
  EXPECT_EQ(defaults.rope_theta, 1e6);
}

TEST(Multimodal, OwnTextClassesAreFamilies) {
  const auto qwen3 = language_config(with_text("Qwen3VL", fmt::format(R"({}, "head_dim": 10,
      "model_type": "qwen3_vl_text", "rope_theta": 5000000, "rope_scaling": {{"rope_type": "yarn",
      "factor": 2.0, "original_max_position_embeddings": 64, "mrope_interleaved": true,
      "mrope_section": [3, 1, 1]}})",
                                                                      text_shape)));
  EXPECT_EQ(qwen3.family, "qwen3");
  EXPECT_EQ(qwen3.rope_scaling->factor, 2);
  const auto glm = language_config(with_text("Glm4v", fmt::format(R"({}, "model_type": "glm4v_text",
      "attention_bias": true, "head_dim": 8, "partial_rotary_factor": 0.5, "rope_scaling":
      {{"type": "default", "mrope_section": [1, 1, 0]}})",
                                                                  text_shape)));
  EXPECT_EQ(glm.family, "glm4");
  EXPECT_EQ(glm.rotary_dims(), 4);
  EXPECT_EQ(language_config(with_text("Glm46V", text_shape)).rotary_dims(), 8);
}

TEST(Multimodal, RefusesWhatDiffersForText) {
  EXPECT_EQ(multimodal_error(with_text("Llava", fmt::format(R"({}, "model_type": "granite",
      "logits_scaling": 8.0)",
                                                            text_shape))),
            "config.json: text_config: the family granite scales or caps its logits, which "
            "LlavaForConditionalGeneration in transformers does not; train the language model from "
            "a folder of its own");
  EXPECT_EQ(multimodal_error(with_text("InternVL", fmt::format(R"({}, "model_type": "qwen3_moe",
      "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
      "output_router_logits": true)",
                                                               text_shape))),
            "config.json: text_config: output_router_logits is true, but "
            "InternVLForConditionalGeneration in transformers has no loss for routers; set it to "
            "false");
  for (const auto& [name, more, message] :
       {std::tuple("Qwen3VL", R"("rope_theta": 1e6, "head_dim": 8, "use_sliding_window": true)",
                   "use_sliding_window is true, which Qwen3VLForConditionalGeneration does not "
                   "read; llamesh computes false only"),
        {"Qwen3VL", R"("head_dim": 8)", "rope_theta is missing"},
        {"Qwen2VL", R"("head_dim": 10)",
         "head_dim is 10, but Qwen2VLForConditionalGeneration takes hidden_size / "
         "num_attention_heads = 8; remove it"},
        {"Qwen2VL", R"("rope_scaling": true)", "rope_scaling: expected an object, got true"},
        {"Glm4v", R"("attention_bias": false)",
         "attention_bias is false, which Glm4vForConditionalGeneration does not read; llamesh "
         "computes true only"}})
    EXPECT_EQ(multimodal_error(with_text(name, fmt::format("{}, {}", text_shape, more))),
              fmt::format("config.json: text_config: {}", message));
  for (const auto* name : {"AyaVision", "PaliGemma", "Mllama", "Qwen3VLMoe"})
    EXPECT_TRUE(
        multimodal_error(with_text(name, text_shape))
            .starts_with(fmt::format("config.json: architectures is "
                                     "[\"{}ForConditionalGeneration\"] and model_type \"x\"; "
                                     "llamesh trains LlamaForCausalLM, ",
                                     name)));
}

/// An export has text_config as its class reads it, whichever version wrote it.
TEST(Multimodal, ExportsKeepTheTextClass) {
  const auto text = fmt::format(R"({}, "rope_theta": 500, "head_dim": 10, "image_token_id": 7,
      "model_type": "qwen3_vl_text")",
                                text_shape);
  for (const auto* block : {"rope_scaling", "rope_parameters"}) {
    const auto original =
        with_text("Qwen3VL",
                  fmt::format(R"({}, "{}": {{"rope_type": "default", "mrope_section": [3, 1, 1]}})",
                              text, block));
    auto c = language_config(original);
    c.initializer_range = 0.5;
    const auto exported = OrderedJson::parse(to_whole_config_json(c, "bfloat16", original));
    EXPECT_EQ(exported["architectures"], OrderedJson::array({"Qwen3VLForConditionalGeneration"}));
    EXPECT_EQ(exported["torch_dtype"], "bfloat16");
    const auto& written = exported["text_config"];
    EXPECT_EQ(written["model_type"], "qwen3_vl_text");
    EXPECT_EQ(written["image_token_id"], 7);
    EXPECT_EQ(written["initializer_range"], 0.5);
    EXPECT_EQ(written["rope_theta"], 500);
    EXPECT_EQ(written["rope_scaling"],
              OrderedJson::parse(R"({"rope_type": "default", "mrope_section": [3, 1, 1]})"));
    EXPECT_FALSE(written.contains("architectures") || written.contains("rope_parameters"));
    EXPECT_EQ(to_config_json(language_config(exported.dump())), to_config_json(c));
  }
  const auto flat = whole_of(
      "Qwen2VL", fmt::format(R"({}, "model_type": "qwen2_vl", "vision_config": {{"depth": 1}},
      "image_token_id": 7, "dtype": "float32", "rope_scaling": {{"type": "mrope",
      "mrope_section": [2, 1, 1]}})",
                             text_shape));
  const auto c = language_config(flat);
  const auto exported = OrderedJson::parse(to_whole_config_json(c, "bfloat16", flat));
  EXPECT_EQ(exported["model_type"], "qwen2_vl");
  EXPECT_EQ(exported["vision_config"]["depth"], 1);
  EXPECT_EQ(exported["torch_dtype"], "bfloat16");
  EXPECT_FALSE(exported.contains("dtype") || exported.contains("text_config"));
  EXPECT_EQ(exported["rope_scaling"]["mrope_section"], OrderedJson::array({2, 1, 1}));
  EXPECT_EQ(to_config_json(language_config(exported.dump())), to_config_json(c));
  const auto alone = OrderedJson::parse(to_config_json(c, "bfloat16", flat));
  EXPECT_EQ(alone["model_type"], "qwen2");
  for (const auto* key : {"vision_config", "image_token_id", "rope_scaling"})
    EXPECT_FALSE(alone.contains(key)) << key;
}

}  // namespace
}  // namespace llamesh::model
