#include "model/description/config_json.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "model/description/config_keys.hpp"
#include "model/description/family.hpp"
#include "model/description/lora.hpp"
#include "model/description/multimodal.hpp"

namespace llamesh::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* lora_key = "llamesh_lora";  // in checkpoints only
constexpr const char* lora_base_key = "llamesh_lora_base";

/// Keys that leave every model as it is, whatever their values: what transformers and other tools
/// write about tokens, generation, provenance and how to load the weights.
constexpr std::string_view harmless_keys[] = {
    // what the model is, and who wrote it
    "_commit_hash", "_name_or_path", "_num_labels", "architectures", "auto_map", "finetuning_task",
    "is_llama_config", "model_type", "transformers.js_config", "transformers_version",
    "unsloth_fixed", "unsloth_version",
    // the weights in memory
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
    "_experts_implementation", "_flash_attn_2_enabled", "attn_implementation",
    "chunk_size_feed_forward", "dtype", "pretraining_tp", "torch_dtype", "torchscript",
    "use_bfloat16", "use_cache", "use_flash_attention_2",
    // how long a text may be
    "max_position_embeddings", "max_sequence_length", "model_max_length", "seq_length",
    // tokens
    "bos_token_id", "decoder_start_token_id", "eod_token_id", "eos_token_id", "pad_token_id",
    "prefix", "sep_token_id", "tokenizer_class", "unk_token_id",
    // what a forward pass returns, and heads for other tasks
    "id2label", "is_decoder", "label2id", "num_labels", "output_attentions", "output_hidden_states",
    "problem_type", "return_dict", "task_specific_params", "tie_encoder_decoder",
    "tie_last_hidden_states",
    // generation
    "bad_words_ids", "begin_suppress_tokens", "cache_implementation", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p",
    // how transformers divides a model among devices
    "base_model_ep_plan", "base_model_pp_plan", "base_model_tp_plan", "ep_size", "tp_plan",
    "tp_size"};

/// Returns the family of a config.json: by `architectures`, or by `model_type` without that.
const Family& family_of(const ConfigKeys& keys) {
  const auto type = keys.text("model_type");
  const auto* architectures = keys.find("architectures");
  const auto found = std::ranges::find_if(families(), [&](const Family* family) {
    if (architectures == nullptr) return family->name == type;
    const auto is = [&](std::string_view name) { return *architectures == Json::array({name}); };
    const auto other = family->other_architecture;
    return family->name == type ? is(family->architecture) || (!other.empty() && is(other))
                                : type.empty() && is(family->architecture);
  });
  if (found != families().end()) return **found;
  std::vector<std::string_view> known;
  for (const auto* family : families())
    if (known.empty() || known.back() != family->architecture)
      known.push_back(family->architecture);
  fail(ExitCode::bad_input,
       "{}: architectures is {} and model_type {}; llamesh trains {}, and the language model of {}",
       keys.name(), keys.shown("architectures"), keys.shown("model_type"), fmt::join(known, ", "),
       fmt::join(multimodal_architectures(), ", "));
}

ModelConfig read_model(const Json& json, const std::string& name) {
  const ConfigKeys keys(json, name);
  const auto& family = family_of(keys);
  if (keys.has("quantization_config")) {
    const auto method = keys.object("quantization_config").text("quant_method");
    validate(method == "fp8" || method == "mxfp4",
             "{}: quantization_config: quant_method is {}; llamesh reads weights in fp8 and mxfp4, "
             "and those that are not quantized",
             name, keys.object("quantization_config").shown("quant_method"));
  }
  validate(!keys.is_null("is_causal") && keys.flag("is_causal", true),
           "{}: is_causal is set, but not to true; llamesh trains causal models only", name);
  ModelConfig c;
  c.family = family.name;
  family.read_config(keys, c);
  if (keys.has(lora_key)) c.lora = parse_adapter_config(keys.object(lora_key));
  if (c.lora && keys.has(lora_base_key)) {
    const auto base = value_of_name<BaseDType>(keys.text(lora_base_key));
    validate(base.has_value(), "{}: {} is {}; this llamesh does not know it", name, lora_base_key,
             keys.shown(lora_base_key));
    c.lora->base = *base;
  }
  keys.refuse_unknown(harmless_keys);
  try {
    return c.resolved();
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", name, error.what());
  }
}

}  // namespace

ModelConfig parse_config_json(const std::string& text, const std::string& name) {
  const Json json = parse_json_object(text, name);
  const auto part = language_part(json, name);
  if (!part) return read_model(json, name);
  auto config = read_model(part->config, part->name);
  check_language_model(*part, config);
  return config;
}

ModelConfig read_config_json(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  return parse_config_json(read_file(path, std::int64_t{1} << 20U), path.string());
}

std::string to_config_json(const ModelConfig& c, const std::string& dtype,
                           const std::string& base) {
  Json json = base.empty() ? Json::object() : parse_json_object(base, "config.json");
  if (auto part = language_part(json, "config.json")) json = std::move(part->config);
  for (const auto* key :
       {"rope_parameters", "rope_scaling", "original_max_position_embeddings", "layer_types",
        "dtype", "torch_dtype", "quantization_config", lora_key, lora_base_key})
    json.erase(key);
  const auto& family = family_named(c.family);
  json["architectures"] = {family.architecture};
  json["model_type"] = family.name;
  family.write_config(c, json);
  if (c.lora) json[lora_key] = to_adapter_config(*c.lora);
  if (c.lora && c.lora->base != BaseDType::automatic)
    json[lora_base_key] = name_in_inputs(c.lora->base);
  if (!dtype.empty()) json["torch_dtype"] = dtype;
  return json.dump(2);
}

std::string to_whole_config_json(const ModelConfig& c, const std::string& dtype,
                                 const std::string& base) {
  Json language = parse_json_object(to_config_json(c, dtype, base), "config.json");
  Json whole = base.empty() ? Json::object() : parse_json_object(base, "config.json");
  if (!language_part(whole, "config.json")) return language.dump(2);
  return with_language_part(std::move(whole), std::move(language)).dump(2);
}

std::string to_config_json(const ModelConfig& config) {
  return to_config_json(config, "", "");
}

}  // namespace llamesh::model
