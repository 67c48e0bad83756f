#include <algorithm>
#include <initializer_list>
#include <string_view>
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

void refuse_what_is_not_computed(const ConfigKeys& keys) {
  const auto activation = keys.text("hidden_act");
  validate(activation.empty() || activation == "silu",
           "{}: hidden_act is '{}'; llamesh computes silu", keys.name(), excerpt(activation));
  const auto* dropout = keys.find("attention_dropout");
  validate(dropout == nullptr || *dropout == 0, "{}: attention_dropout is {}; llamesh has none",
           keys.name(), keys.shown("attention_dropout"));
}

/// Refuses a list of layer types that differs from what the other keys say.
void check_layer_types(const ConfigKeys& keys, const ModelConfig& c) {
  if (!keys.has("layer_types")) return;
  auto expected = ConfigKeys::Json::array();
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i)
    expected.push_back(c.window(i) > 0 ? "sliding_attention" : "full_attention");
  validate(*keys.find("layer_types") == expected,
           "{}: layer_types is {}, which is not what sliding_window and max_window_layers say",
           keys.name(), keys.shown("layer_types"));
}

void read_window(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  constexpr std::int64_t default_max_window_layers = 28;
  const bool by_layer = variant.windowed_layers == WindowedLayers::from_index;
  bool in_use = variant.windowed_layers == WindowedLayers::all;
  if (by_layer) {
    in_use = keys.flag("use_sliding_window");
    keys.ignore({"sliding_window", "max_window_layers"});  // unless the window is in use
  }
  if (in_use && !keys.is_null("sliding_window"))
    c.sliding_window = keys.size_or("sliding_window", variant.sliding_window);
  if (by_layer && c.sliding_window > 0)
    c.max_window_layers = keys.has("max_window_layers") ? keys.size("max_window_layers", 0)
                                                        : default_max_window_layers;
  check_layer_types(keys, c);
}

void write_window(const LlamaVariant& variant, const ModelConfig& c, nlohmann::ordered_json& json) {
  if (variant.windowed_layers == WindowedLayers::none) return;
  json["sliding_window"] =
      c.sliding_window > 0 ? nlohmann::ordered_json(c.sliding_window) : nullptr;
  if (variant.windowed_layers == WindowedLayers::all) return;
  json["use_sliding_window"] = c.sliding_window > 0;
  json["max_window_layers"] = c.sliding_window > 0 ? c.max_window_layers : c.num_hidden_layers;
}

/// Refuses windows, and a router that is more than its softmax.
void refuse_other_experts(const ConfigKeys& keys) {
  const auto refuse = [&](const char* key, const ConfigKeys::Json& computed) {
    const auto* value = keys.find(key);
    validate(value == nullptr || *value == computed, "{}: {} is {}; llamesh computes {} only",
             keys.name(), key, keys.shown(key), computed.dump());
  };
  refuse("use_sliding_window", false);
  refuse("router_jitter_noise", 0.0);
}

void read_experts(const ExpertKeys& experts, const ConfigKeys& keys, ModelConfig& c) {
  refuse_other_experts(keys);
  c.num_experts = keys.size(keys.either(experts.count, experts.second_count));
  c.num_experts_per_tok = keys.size("num_experts_per_tok");
  if (experts.own_size) {
    keys.ignore({"sliding_window", "max_window_layers"});  // use_sliding_window is false
    c.moe_intermediate_size = keys.size("moe_intermediate_size");
    c.decoder_sparse_step = keys.size_or("decoder_sparse_step", 1);
    c.mlp_only_layers = keys.integers("mlp_only_layers");
  }
  c.norm_topk_prob = !experts.has_norm_topk_prob || keys.flag("norm_topk_prob");
  c.output_router_logits = keys.flag("output_router_logits");
  c.router_aux_loss_coef = keys.number_from_0("router_aux_loss_coef", c.router_aux_loss_coef);
}

void write_experts(const ExpertKeys& experts, const ModelConfig& c, nlohmann::ordered_json& json) {
  json.erase(experts.second_count);
  json[experts.count] = c.num_experts;
  json["num_experts_per_tok"] = c.num_experts_per_tok;
  json["output_router_logits"] = c.output_router_logits;
  json["router_aux_loss_coef"] = c.router_aux_loss_coef;
  if (experts.own_size) {
    json["moe_intermediate_size"] = c.expert_size();
    json["decoder_sparse_step"] = c.decoder_sparse_step;
    json["mlp_only_layers"] = c.mlp_only_layers;
  }
  if (experts.has_norm_topk_prob) json["norm_topk_prob"] = c.norm_topk_prob;
}

void check_experts(const ModelConfig& c) {
  validate(c.num_experts > 0 && c.num_experts_per_tok > 0,
           "model.num_experts is {} and num_experts_per_tok {}; the family {} needs both",
           c.num_experts, c.num_experts_per_tok, c.family);
  std::int64_t sparse = 0;
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i) sparse += c.has_experts(i);
  validate(sparse > 0,
           "by model.decoder_sparse_step {} and mlp_only_layers none of the {} layers has experts; "
           "use a dense family",
           c.decoder_sparse_step, c.num_hidden_layers);
}

}  // namespace

void read_llama_config(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  refuse_what_is_not_computed(keys);
  c.hidden_size = keys.size("hidden_size");
  c.intermediate_size = keys.size("intermediate_size");
  c.num_hidden_layers = keys.size("num_hidden_layers");
  c.num_attention_heads = keys.size("num_attention_heads");
  c.num_key_value_heads = read_size(keys, "num_key_value_heads", variant.needs_num_key_value_heads);
  c.head_dim = read_size(keys, "head_dim", variant.needs_head_dim);
  c.vocab_size = keys.size("vocab_size");
  c.rms_norm_eps = keys.number("rms_norm_eps", variant.rms_norm_eps);
  c.initializer_range = keys.number("initializer_range", 0.02);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings");
  if (variant.has_attention_bias) c.attention_bias = keys.flag("attention_bias");
  if (variant.has_mlp_bias) c.mlp_bias = keys.flag("mlp_bias");
  if (variant.experts) read_experts(*variant.experts, keys, c);
  read_window(variant, keys, c);
  c.rope_theta = variant.rope_theta;  // unless the keys say otherwise
  read_rope(keys, c);
}

void write_llama_config(const LlamaVariant& variant, const ModelConfig& c,
                        nlohmann::ordered_json& json) {
  json.update({{"hidden_act", "silu"},
               {"hidden_size", c.hidden_size},
               {"intermediate_size", c.intermediate_size},
               {"num_hidden_layers", c.num_hidden_layers},
               {"num_attention_heads", c.num_attention_heads},
               {"num_key_value_heads", c.num_key_value_heads},
               {"head_dim", c.head_dim},
               {"vocab_size", c.vocab_size},
               {"rms_norm_eps", c.rms_norm_eps},
               {"tie_word_embeddings", c.tie_word_embeddings},
               {"initializer_range", c.initializer_range}});
  if (variant.has_attention_bias) json["attention_bias"] = c.attention_bias;
  if (variant.has_mlp_bias) json["mlp_bias"] = c.mlp_bias;
  if (variant.experts) write_experts(*variant.experts, c, json);
  write_window(variant, c, json);
  write_rope(c, json);
}

bool has_llama_key(const LlamaVariant& variant, std::string_view key) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> keys) {
    return std::ranges::find(keys, key) != keys.end();
  };
  const auto& experts = variant.experts;
  return is_one_of({"rms_norm_eps", "rope_theta", "rope_scaling"}) ||
         (key == "attention_bias" && variant.has_attention_bias) ||
         (key == "mlp_bias" && variant.has_mlp_bias) ||
         (key == "sliding_window" && variant.windowed_layers != WindowedLayers::none) ||
         (key == "max_window_layers" && variant.windowed_layers == WindowedLayers::from_index) ||
         (experts && is_one_of({"num_experts", "num_experts_per_tok", "output_router_logits",
                                "router_aux_loss_coef", "router_z_loss_coef"})) ||
         (experts && experts->own_size &&
          is_one_of({"moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers"})) ||
         (experts && experts->has_norm_topk_prob && key == "norm_topk_prob");
}

void check_llama_config(const LlamaVariant& variant, const ModelConfig& c) {
  check_rope(c);
  if (variant.experts) check_experts(c);
}

}  // namespace llamesh::model
