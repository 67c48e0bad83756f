#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/families/llama_like.hpp"

namespace llamesh::model {
namespace {

/// Reads a size that may follow from others. Returns 0 if it does: the key is null, or absent where
/// it is not needed.
std::int64_t read_size(const ConfigKeys& keys, const char* key, bool needed) {
  return keys.is_null(key) || (!needed && !keys.has(key)) ? 0 : keys.size(key);
}

void refuse_what_is_not_computed(const LlamaVariant& variant, const ConfigKeys& keys) {
  const auto& [key, computed] = variant.activation_name;
  const auto& [old_key, old] = variant.old_activation_name;
  const auto refuse_other = [&](const char* name, std::string_view also) {
    const auto activation = keys.text(name);
    validate(activation.empty() || activation == computed || activation == also,
             "{}: {} is '{}'; llamesh computes {}", keys.name(), name, excerpt(activation),
             computed);
  };
  refuse_other(key, old != nullptr ? old : computed);
  if (old_key != nullptr) refuse_other(old_key, computed);
  for (const auto* name : variant.null_names)
    validate(!keys.has(name), "{}: {} is {}; llamesh computes null only", keys.name(), name,
             keys.shown(name));
  for (const auto* name : variant.false_names)
    validate(!keys.flag(name), "{}: {} is true; llamesh computes the family without it",
             keys.name(), name);
  if (variant.takes("dropout")) return;
  const auto* dropout = keys.find("attention_dropout");
  validate(dropout == nullptr || *dropout == 0, "{}: attention_dropout is {}; llamesh has none",
           keys.name(), keys.shown("attention_dropout"));
}

void read_layer_types(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  c.layer_types = keys.texts("layer_types");
  keys.ignore({"sliding_window_pattern", "_sliding_window_pattern"});
  if (c.layer_types.empty()) {
    const auto every = keys.size_or("sliding_window_pattern", variant.full_attention_every);
    for (std::int64_t i = 1; i <= c.num_hidden_layers; ++i)
      c.layer_types.emplace_back(c.sliding_window == 0 || (every > 0 && i % every == 0)
                                     ? full_attention
                                     : sliding_attention);
  }
  validate(std::ssize(c.layer_types) == c.num_hidden_layers,
           "{}: layer_types has {} types, but num_hidden_layers is {}", keys.name(),
           c.layer_types.size(), c.num_hidden_layers);
}

/// Refuses a list of layer types that differs from what the other keys say.
void check_layer_types(const ConfigKeys& keys, const ModelConfig& c) {
  if (!keys.has("layer_types")) return;
  auto types = keys.texts("layer_types");
  std::ranges::replace(types, "attention", full_attention);  // its older name
  std::vector<std::string> expected;
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i)
    expected.emplace_back(c.window(i) > 0 ? sliding_attention : full_attention);
  validate(types == expected,
           "{}: layer_types is {}, which is not what sliding_window and max_window_layers say",
           keys.name(), keys.shown("layer_types"));
}

void read_window(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  constexpr std::int64_t default_max_window_layers = 28;
  const bool by_layer = variant.takes("max_window_layers");
  bool in_use = variant.takes("sliding_window");
  if (by_layer) {
    in_use = keys.flag("use_sliding_window");
    keys.ignore({"sliding_window", "max_window_layers"});  // unless the window is in use
  }
  if (in_use && !keys.is_null("sliding_window"))
    c.sliding_window = keys.size_or("sliding_window", variant.sliding_window);
  if (by_layer && c.sliding_window > 0)
    c.max_window_layers = keys.has("max_window_layers") ? keys.size("max_window_layers", 0)
                                                        : default_max_window_layers;
  if (variant.takes("layer_types"))
    read_layer_types(variant, keys, c);
  else
    check_layer_types(keys, c);
}

void read_no_rope_layers(const ConfigKeys& keys, ModelConfig& c) {
  c.no_rope_layers = keys.integers("no_rope_layers");
  keys.ignore({"no_rope_layer_interval", "sliding_window"});  // unless the window is in use
  validate(!keys.flag("use_sliding_window"),
           "{}: use_sliding_window is true; llamesh computes the family {} without windows",
           keys.name(), c.family);
  if (c.no_rope_layers.empty()) {
    const auto every = keys.size_or("no_rope_layer_interval", 4);
    for (std::int64_t i = 1; i <= c.num_hidden_layers; ++i)
      c.no_rope_layers.push_back(i % every == 0 ? 0 : 1);
  }
  validate(std::ssize(c.no_rope_layers) >= c.num_hidden_layers,
           "{}: no_rope_layers has {} layers, but num_hidden_layers is {}", keys.name(),
           c.no_rope_layers.size(), c.num_hidden_layers);
  c.no_rope_layers.resize(static_cast<std::size_t>(c.num_hidden_layers));
}

/// Reads what latent attention has beside its sizes.
void read_latent(const ConfigKeys& keys, ModelConfig& c) {
  validate(keys.has("q_lora_rank") || keys.is_null("q_lora_rank"), "{}: q_lora_rank is missing",
           keys.name());
  if (!keys.is_null("q_lora_rank")) c.q_lora_rank = keys.size("q_lora_rank");
  // transformers' head_dim is RoPE's, whatever the key says.
  validate(keys.size_or("head_dim", c.qk_rope_head_dim) == c.qk_rope_head_dim,
           "{}: head_dim is {}, but qk_rope_head_dim {}; remove head_dim", keys.name(),
           keys.shown("head_dim"), c.qk_rope_head_dim);
  c.head_dim = c.qk_nope_head_dim + c.qk_rope_head_dim;
  validate(keys.size_or("qk_head_dim", c.head_dim) == c.head_dim,
           "{}: qk_head_dim is {}, but qk_nope_head_dim {} and qk_rope_head_dim {}; remove it",
           keys.name(), keys.shown("qk_head_dim"), c.qk_nope_head_dim, c.qk_rope_head_dim);
  for (const auto* key : {"rope_interleave", "norm_topk_prob"})  // transformers takes false
    validate(!keys.is_null(key), "{}: {} is null; set it to true or false", keys.name(), key);
  validate(keys.size_or("moe_layer_freq", 1) == 1,
           "{}: moe_layer_freq is {}, which transformers ignores; llamesh computes 1 only",
           keys.name(), keys.shown("moe_layer_freq"));
  validate(keys.flag("rope_interleave", true),
           "{}: rope_interleave is false; llamesh computes true only", keys.name());
}

void write_latent(const ModelConfig& c, nlohmann::ordered_json& json) {
  json.erase("head_dim");
  json["q_lora_rank"] = c.q_lora_rank > 0 ? nlohmann::ordered_json(c.q_lora_rank) : nullptr;
}

void check_latent(const ModelConfig& c) {
  for (const auto& [key, size] :
       {std::pair("kv_lora_rank", c.kv_lora_rank),
        std::pair("qk_nope_head_dim", c.qk_nope_head_dim),
        std::pair("qk_rope_head_dim", c.qk_rope_head_dim), std::pair("v_head_dim", c.v_head_dim)})
    validate(size > 0, "model.{} is 0; the family {} has latent attention and needs it", key,
             c.family);
  validate(c.head_dim == c.qk_nope_head_dim + c.qk_rope_head_dim,
           "model.head_dim is {}, but qk_nope_head_dim {} and qk_rope_head_dim {} add up to {}",
           c.head_dim, c.qk_nope_head_dim, c.qk_rope_head_dim,
           c.qk_nope_head_dim + c.qk_rope_head_dim);
  validate(c.qk_nope_head_dim % 2 == 0, "model.qk_nope_head_dim is {}; it must be even",
           c.qk_nope_head_dim);
  validate(c.num_key_value_heads == c.num_attention_heads,
           "model.num_key_value_heads is {} and num_attention_heads {}; with latent attention they "
           "are equal",
           c.num_key_value_heads, c.num_attention_heads);
}

/// Reads one key for all biases.
void read_bias(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  c.attention_bias = keys.flag(variant.bias_name, c.attention_bias);
  if (variant.takes("mlp_bias")) c.mlp_bias = c.attention_bias;
}

void write_bias(const LlamaVariant& variant, const ModelConfig& c, nlohmann::ordered_json& json) {
  for (const auto* key : {"attention_bias", "mlp_bias"}) json.erase(key);
  json[variant.bias_name] = c.attention_bias;
}

/// Keys that are null for 0.
constexpr std::pair<const char*, double ModelConfig::*> softcaps[] = {
    {"attn_logit_softcapping", &ModelConfig::attn_logit_softcapping},
    {"final_logit_softcapping", &ModelConfig::final_logit_softcapping}};

/// Reads what changes logits and attention's scores.
void read_logits(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  if (variant.has_logit_scale)
    c.logits_scaling = 1 / keys.number("logit_scale", 1 / c.logits_scaling);
  for (const auto& [name, member] : softcaps)
    if (variant.takes(name)) c.*member = keys.is_null(name) ? 0 : keys.number(name, c.*member);
}

void write_logits(const LlamaVariant& variant, const ModelConfig& c, nlohmann::ordered_json& json) {
  if (variant.has_logit_scale) {
    json.erase("logits_scaling");
    json["logit_scale"] = 1 / c.logits_scaling;
  }
  for (const auto& [name, member] : softcaps)
    if (variant.takes(name))
      json[name] = c.*member > 0 ? nlohmann::ordered_json(c.*member) : nullptr;
}

void write_window(const LlamaVariant& variant, const ModelConfig& c, nlohmann::ordered_json& json) {
  if (!variant.takes("sliding_window")) return;
  json["sliding_window"] =
      c.sliding_window > 0 ? nlohmann::ordered_json(c.sliding_window) : nullptr;
  if (!variant.takes("max_window_layers")) return;
  json["use_sliding_window"] = c.sliding_window > 0;
  json["max_window_layers"] = c.sliding_window > 0 ? c.max_window_layers : c.num_hidden_layers;
}

/// Refuses windows by layer, and a router that is more than its scores.
void refuse_other_experts(const LlamaVariant& variant, const ConfigKeys& keys) {
  const auto refuse = [&](const char* key, const ConfigKeys::Json& computed) {
    const auto* value = keys.find(key);
    validate(value == nullptr || *value == computed, "{}: {} is {}; llamesh computes {} only",
             keys.name(), key, keys.shown(key), computed.dump());
  };
  refuse("use_sliding_window", false);
  refuse("router_jitter_noise", 0.0);
  if (variant.names.selection_bias.empty()) return;
  const auto is_unread = [](std::string_view name) { return name == "scoring_func"; };
  if (!std::ranges::any_of(variant.unread_names, is_unread)) refuse("scoring_func", "sigmoid");
  refuse("topk_method", "noaux_tc");
}

void read_experts(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  refuse_other_experts(variant, keys);
  const auto& names = *variant.expert_count;
  c.num_experts = keys.size(keys.either(names.name, names.other));
  constexpr const char* shared_size = "shared_expert_intermediate_size";
  if (names.shared != nullptr)
    c.shared_expert_intermediate_size = keys.size(names.shared, 0) * c.moe_intermediate_size;
  else if (variant.takes(shared_size))
    c.shared_expert_intermediate_size = keys.size(shared_size);
  if (constexpr const char* first = "first_k_dense_replace";
      variant.takes(first) && keys.has(first))
    c.first_k_dense_replace = keys.size(first, 0);
  if (!variant.takes("sliding_window"))
    keys.ignore({"sliding_window", "max_window_layers"});  // use_sliding_window is false
}

void write_experts(const LlamaVariant& variant, const ModelConfig& c,
                   nlohmann::ordered_json& json) {
  const auto& names = *variant.expert_count;
  json.erase(names.other);
  json[names.name] = c.num_experts;
  if (names.shared != nullptr)
    json[names.shared] = c.shared_expert_intermediate_size / c.expert_size();
  else if (variant.takes("shared_expert_intermediate_size"))
    json["shared_expert_intermediate_size"] = c.shared_expert_intermediate_size;
  if (variant.takes("first_k_dense_replace"))
    json["first_k_dense_replace"] = c.first_k_dense_replace;
  if (variant.takes("moe_intermediate_size")) json["moe_intermediate_size"] = c.expert_size();
}

void check_experts(const LlamaVariant& variant, const ModelConfig& c) {
  validate(c.num_experts > 0 && c.num_experts_per_tok > 0,
           "model.num_experts is {} and num_experts_per_tok {}; the family {} needs both",
           c.num_experts, c.num_experts_per_tok, c.family);
  const auto shared = c.shared_expert_intermediate_size;
  const bool counted = variant.expert_count->shared != nullptr;
  validate(counted || shared > 0 || !variant.takes("shared_expert_intermediate_size"),
           "model.shared_expert_intermediate_size is 0; the family {} has a shared expert",
           c.family);
  validate(!counted || shared % c.expert_size() == 0,
           "model.shared_expert_intermediate_size is {}, which is no multiple of "
           "moe_intermediate_size {}; the family {} has whole shared experts",
           shared, c.expert_size(), c.family);
  validate(
      c.num_experts % c.n_group == 0 && c.topk_group <= c.n_group,
      "model.n_group is {} and topk_group {}, but num_experts is {}; the groups must be equal, "
      "and no more can be taken than there are",
      c.n_group, c.topk_group, c.num_experts);
  validate(c.num_experts_per_tok <= c.num_experts / c.n_group * c.topk_group,
           "model.num_experts_per_tok is {}, but {} of {} groups have {} experts",
           c.num_experts_per_tok, c.topk_group, c.n_group,
           c.num_experts / c.n_group * c.topk_group);
  std::int64_t sparse = 0;
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i) sparse += c.has_experts(i);
  validate(sparse > 0,
           "by model.decoder_sparse_step {}, mlp_only_layers and first_k_dense_replace {} none of "
           "the {} layers has experts; use a dense family",
           c.decoder_sparse_step, c.first_k_dense_replace, c.num_hidden_layers);
}

}  // namespace

void read_llama_config(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  refuse_what_is_not_computed(variant, keys);
  for (const auto* name : variant.unread_names) keys.ignore({name});
  variant.set_defaults(c);
  read_keys(keys, llama_keys.with(variant.keys), c);
  variant.read_more(keys, c);
  c.num_key_value_heads = read_size(keys, "num_key_value_heads", variant.needs_num_key_value_heads);
  if (variant.has_latent_attention())
    read_latent(keys, c);
  else
    c.head_dim = read_size(keys, "head_dim", variant.needs_head_dim);
  if (variant.expert_count) read_experts(variant, keys, c);
  read_window(variant, keys, c);
  if (variant.takes("no_rope_layers")) read_no_rope_layers(keys, c);
  if (variant.bias_name != nullptr) read_bias(variant, keys, c);
  read_logits(variant, keys, c);
  if (const auto* eps = variant.layer_norm_eps_name)
    c.layer_norm_epsilon = keys.number(eps, ModelConfig().layer_norm_epsilon);
  validate(!variant.takes("attention_multiplier") || c.attention_multiplier > 0,
           "{}: attention_multiplier is 0; it must be above 0", keys.name());
  if (variant.takes("dropout"))
    c.dropout = read_dropout(keys, variant.dropout_names, variant.default_dropout);
  read_rope(variant, keys, c);
}

void write_llama_config(const LlamaVariant& variant, const ModelConfig& c,
                        nlohmann::ordered_json& json) {
  json[variant.activation_name.key] = variant.activation_name.value;
  write_keys(c, llama_keys.with(variant.keys), json);
  json["num_key_value_heads"] = c.num_key_value_heads;
  json["head_dim"] = c.head_dim;
  if (variant.has_latent_attention()) write_latent(c, json);
  if (variant.expert_count) write_experts(variant, c, json);
  if (variant.bias_name != nullptr) write_bias(variant, c, json);
  write_logits(variant, c, json);
  if (const auto* eps = variant.layer_norm_eps_name) {
    for (const auto* key : {"rms_norm_eps", "layer_norm_epsilon"}) json.erase(key);
    json[eps] = c.layer_norm_epsilon;
  }
  write_window(variant, c, json);
  write_rope(variant, c, json);
  if (variant.takes("layer_types")) json["layer_types"] = c.layer_types;
  if (variant.takes("no_rope_layers")) json["no_rope_layers"] = c.no_rope_layers;
  if (variant.takes("dropout"))
    write_dropout(c.dropout, variant.dropout_names, variant.default_dropout, json);
  variant.write_more(c, json);
}

void check_llama_config(const LlamaVariant& variant, const ModelConfig& c) {
  if (variant.has_latent_attention()) check_latent(c);
  check_rope(variant, c);
  validate(
      variant.bias_name == nullptr || !variant.takes("mlp_bias") || c.attention_bias == c.mlp_bias,
      "model.attention_bias is {} and mlp_bias {}; the family {} has both or none",
      c.attention_bias, c.mlp_bias, c.family);
  validate(
      !variant.derives_head_dim || c.head_dim * c.num_attention_heads == c.hidden_size,
      "model.head_dim is {}; in the family {} it is hidden_size / num_attention_heads, {} / {}",
      c.head_dim, c.family, c.hidden_size, c.num_attention_heads);
  if (variant.expert_count) check_experts(variant, c);
  for_each_model_key([&]<class T>(const ModelKey<T>& key) {
    if constexpr (std::is_same_v<T, bool>)
      validate(
          !(c.*key.member) || !std::ranges::count(variant.false_names, std::string_view(key.name)),
          "model.{} is true; llamesh computes the family {} without it", key.name, c.family);
  });
}

}  // namespace llamesh::model
