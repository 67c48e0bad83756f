#include "model/description/multimodal.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace llamesh::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* text_config = "text_config";

/// What the class computes with text_config if that is no family's own.
struct OwnTextClass {
  const char* family = nullptr;  ///< the one that it computes, whatever model_type says; null: none
  const char* defaults = "{}";   ///< for absent keys, if they differ from the family's
  /// Keys that the class does not read, with what it computes.
  const char* computed = "{}";
  bool derives_head_dim = false;  ///< from hidden_size, whatever head_dim says
  bool needs_rope_theta = false;  ///< its default differs between versions of transformers
  /// Older folders have text_config's keys beside vision_config.
  bool may_be_flat = false;
};

struct Multimodal {
  std::string_view architecture, model_type;  ///< in config.json
  const char* family;                         ///< text_config's model_type, if that has none
  OwnTextClass own = {};
};

constexpr OwnTextClass qwen2_vl{
    .family = "qwen2",
    .defaults = R"({"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80})",
    .derives_head_dim = true,
    .may_be_flat = true};

constexpr OwnTextClass qwen3_vl{
    .family = "qwen3", .computed = R"({"use_sliding_window": false})", .needs_rope_theta = true};

constexpr OwnTextClass glm4v{.family = "glm4",
                             .defaults = R"({"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0})",
                             .computed = R"({"attention_bias": true})",
                             .derives_head_dim = true};

constexpr Multimodal known[] = {
    {"Gemma3ForConditionalGeneration", "gemma3", "gemma3_text"},
    {"Mistral3ForConditionalGeneration", "mistral3", "mistral"},
    {"LlavaForConditionalGeneration", "llava", "llama"},
    {"LlavaNextForConditionalGeneration", "llava_next", "llama"},
    {"LlavaOnevisionForConditionalGeneration", "llava_onevision", "qwen2"},
    {"VipLlavaForConditionalGeneration", "vipllava", "llama"},
    {"InternVLForConditionalGeneration", "internvl", "qwen2"},
    {"GotOcr2ForConditionalGeneration", "got_ocr2", "qwen2"},
    {"Idefics3ForConditionalGeneration", "idefics3", "llama"},
    {"SmolVLMForConditionalGeneration", "smolvlm", "llama"},
    {"Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2", qwen2_vl},
    {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2", qwen2_vl},
    {"Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3", qwen3_vl},
    {"Glm4vForConditionalGeneration", "glm4v", "glm4", glm4v},
    {"Glm46VForConditionalGeneration", "glm46v", "glm4", glm4v}};

/// transformers' sizes for keys that are not in text_config, but in every folder of the language
/// model alone.
constexpr std::pair<std::string_view, const char*> sizes[] = {
    {"gemma3_text", R"({"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "vocab_size": 262208})"},
    {"llama", R"({"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000})"},
    {"mistral", R"({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000})"},
    {"qwen2", R"({"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936})"}};

Json sizes_of(std::string_view family) {
  const auto* const found =
      std::ranges::find(sizes, family, &std::pair<std::string_view, const char*>::first);
  return found == std::end(sizes) ? Json::object() : Json::parse(found->second);
}

/// Keys of the other parts, also where they stand in text_config.
constexpr const char* image_keys[] = {"vision_config",       "vision_start_token_id",
                                      "vision_end_token_id", "vision_token_id",
                                      "image_token_id",      "video_token_id"};

// Dims of a head are rotated by three positions of an image's patch (its time, height and width).
// These are equal for text, so it does not matter which dims take which.
constexpr const char* mrope_keys[] = {"mrope_section", "mrope_interleaved"};
constexpr const char* rope_blocks[] = {"rope_scaling", "rope_parameters"};

/// Returns null for a model that is not known. transformers 4.57 writes some folders without
/// architectures.
const Multimodal* find_model(const Json& whole, const std::string& name) {
  const ConfigKeys keys(whole, name);
  const auto* architectures = keys.find("architectures");
  const auto* const found = std::ranges::find_if(known, [&](const Multimodal& model) {
    return architectures != nullptr ? *architectures == Json::array({model.architecture})
                                    : keys.text("model_type") == model.model_type;
  });
  return found == std::end(known) ? nullptr : found;
}

bool is_flat(const Multimodal& model, const Json& whole) {
  return model.own.may_be_flat && !whole.contains(text_config);
}

/// Leaves a block that says the same for text alone.
void drop_mrope(Json& block) {
  for (const auto* key : mrope_keys) block.erase(key);
  for (const auto* key : {"rope_type", "type"})
    if (block.contains(key) && block[key] == "mrope") block[key] = "default";
  if (!block.contains("rope_type") && !block.contains("type")) block["rope_type"] = "default";
}

std::int64_t derived_head_dim(const ConfigKeys& keys) {
  return keys.size("hidden_size") / keys.size("num_attention_heads");
}

/// Refuses keys that the family reads and the class does not.
void check_own_class(const Multimodal& model, const ConfigKeys& keys) {
  const auto all_computed = Json::parse(model.own.computed);
  for (const auto& [key, computed] : all_computed.items())
    validate(!keys.has(key.c_str()) || *keys.find(key.c_str()) == computed,
             "{}: {} is {}, which {} does not read; llamesh computes {} only", keys.name(), key,
             keys.shown(key.c_str()), model.architecture, computed.dump());
  if (model.own.derives_head_dim)
    validate(keys.size_or("head_dim", derived_head_dim(keys)) == derived_head_dim(keys),
             "{}: head_dim is {}, but {} takes hidden_size / num_attention_heads = {}; remove it",
             keys.name(), keys.shown("head_dim"), model.architecture, derived_head_dim(keys));
  if (!model.own.needs_rope_theta || keys.has("rope_theta")) return;
  // The first one counts, even if it does not say it.
  for (const auto* block : rope_blocks)
    if (keys.has(block) && !keys.find(block)->empty()) {
      validate(keys.object(block).has("rope_theta"), "{}: rope_theta is missing", keys.name());
      return;
    }
  fail(ExitCode::bad_input, "{}: rope_theta is missing", keys.name());
}

}  // namespace

std::optional<LanguagePart> language_part(const Json& whole, const std::string& name) {
  const auto* model = find_model(whole, name);
  if (model == nullptr) return std::nullopt;
  const ConfigKeys keys(whole, name);
  const bool flat = is_flat(*model, whole);
  const ConfigKeys stored = flat ? keys : keys.object(text_config);
  const auto type = stored.text("model_type");
  const std::string family = model->own.family != nullptr ? model->own.family
                             : type.empty()               ? model->family
                                                          : type;
  auto language =
      model->own.family != nullptr ? Json::parse(model->own.defaults) : sizes_of(family);
  language.update(flat ? whole : whole.at(text_config));
  language["model_type"] = family;
  language.erase("architectures");  // model_type says it
  if (model->own.family != nullptr) {
    check_own_class(*model, stored);
    if (model->own.derives_head_dim) language["head_dim"] = derived_head_dim(stored);
    for (const auto* key : image_keys) language.erase(key);
    for (const auto* block : rope_blocks) {
      if (!stored.has(block) || stored.find(block)->empty()) continue;
      stored.object(block);  // it must be one
      drop_mrope(language[block]);
    }
  }
  for (const auto* key : {"quantization_config", "tie_word_embeddings"})
    if (keys.has(key) && !language.contains(key)) language[key] = *keys.find(key);
  return LanguagePart{std::move(language), stored.name(), std::string(model->architecture)};
}

void check_language_model(const LanguagePart& part, const ModelConfig& c) {
  validate(c.logits_scaling == 1 && c.final_logit_softcapping == 0,
           "{}: the family {} scales or caps its logits, which {} in transformers does not; train "
           "the language model from a folder of its own",
           part.name, c.family, part.architecture);
  validate(!c.output_router_logits,
           "{}: output_router_logits is true, but {} in transformers has no loss for routers; set "
           "it to false",
           part.name, part.architecture);
}

Json with_language_part(Json whole, Json language) {
  const auto& model = *find_model(whole, "config.json");
  const bool flat = is_flat(model, whole);
  const Json& stored = flat ? whole : whole.at(text_config);
  if (model.own.family != nullptr) {
    language.erase("architectures");
    language.erase("model_type");
    if (stored.contains("model_type")) language["model_type"] = stored["model_type"];
    for (const auto* key : image_keys)
      if (stored.contains(key)) language[key] = stored[key];
    for (const auto* block : rope_blocks)
      for (const auto* key : mrope_keys) {
        if (!stored.contains(block) || !stored[block].contains(key)) continue;
        if (!language.contains("rope_scaling")) language["rope_scaling"]["rope_type"] = "default";
        language["rope_scaling"][key] = stored[block][key];
      }
  }
  if (flat) {
    language["architectures"] = {model.architecture};
    return language;
  }
  whole["architectures"] = {model.architecture};
  whole["tie_word_embeddings"] = language.at("tie_word_embeddings");
  for (const auto* key : {"dtype", "quantization_config"}) whole.erase(key);
  if (language.contains("torch_dtype")) whole["torch_dtype"] = language["torch_dtype"];
  whole[text_config] = std::move(language);
  return whole;
}

std::vector<std::string_view> multimodal_architectures() {
  std::vector<std::string_view> names;
  for (const auto& model : known) names.push_back(model.architecture);
  return names;
}

}  // namespace llamesh::model
