#include "model/description/multimodal.hpp"

#include <algorithm>
#include <utility>

namespace llamesh::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* text_config = "text_config";

struct Multimodal {
  std::string_view architecture;  ///< in config.json
  /// What transformers takes for keys that are not in text_config, but in every folder of the
  /// language model alone.
  const char* defaults;
};

constexpr Multimodal known[] = {
    {"Gemma3ForConditionalGeneration",
     R"({"model_type": "gemma3_text", "hidden_size": 2304, "intermediate_size": 9216,
         "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 256, "vocab_size": 262208})"},
    {"Mistral3ForConditionalGeneration", R"({"model_type": "mistral"})"}};

}  // namespace

std::optional<Json> language_part(const ConfigKeys& keys) {
  const auto* architectures = keys.find("architectures");
  if (architectures == nullptr) return std::nullopt;
  const auto* const found = std::ranges::find_if(known, [&](const Multimodal& model) {
    return *architectures == Json::array({model.architecture});
  });
  if (found == std::end(known)) return std::nullopt;
  keys.object(text_config);  // it must be one
  auto language = Json::parse(found->defaults);
  language.update(*keys.find(text_config));
  language.erase("architectures");  // model_type says it
  for (const auto* key : {"quantization_config", "tie_word_embeddings"})
    if (keys.has(key) && !language.contains(key)) language[key] = *keys.find(key);
  return language;
}

Json with_language_part(Json whole, const Json& language) {
  whole[text_config] = language;
  whole["tie_word_embeddings"] = language.at("tie_word_embeddings");
  for (const auto* key : {"dtype", "quantization_config"}) whole.erase(key);
  if (language.contains("torch_dtype")) whole["torch_dtype"] = language["torch_dtype"];
  return whole;
}

std::vector<std::string_view> multimodal_architectures() {
  std::vector<std::string_view> names;
  for (const auto& model : known) names.push_back(model.architecture);
  return names;
}

}  // namespace llamesh::model
