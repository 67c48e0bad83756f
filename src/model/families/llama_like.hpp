#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/description/config_keys.hpp"
#include "model/description/family.hpp"
#include "model/description/model_config.hpp"

namespace llamesh::model {

/// RMSNorm on queries and keys.
enum class QkNorm { none, per_head, projection };

/// How the RoPE of layers with a window differs from that of the others.
enum class WindowRope {
  same,
  own_base,       ///< rope_local_base_freq, never scaled
  unscaled,       ///< rope_theta, never scaled
  only_windowed,  ///< if the model has windows, the layers without one do not rotate
  windowed,       ///< layers without a window do not rotate
};

/// Names in config.json for the number of experts.
struct ExpertCountNames {
  const char* name;   ///< the one that all versions of transformers read
  const char* other;  ///< in other versions
  /// For a number of shared experts, whose sizes add up to shared_expert_intermediate_size; null:
  /// it has its own name, if the family takes it.
  const char* shared = nullptr;
};

/// Key and value by which config.json names the activation.
struct ActivationName {
  const char* key = nullptr;
  const char* value = nullptr;
};

/// Keys of every family whose layer is Llama's.
inline constexpr KeyList llama_keys{
    "hidden_size",         "intermediate_size", "num_hidden_layers",   "num_attention_heads",
    "num_key_value_heads", "head_dim",          "vocab_size",          "rms_norm_eps",
    "rope_theta",          "rope_scaling",      "tie_word_embeddings", "initializer_range"};

/// What a family whose layer is Llama's has of its own.
struct LlamaVariant {
  /// Keys beside llama_keys. Layers may have sliding windows with sliding_window; if there is
  /// max_window_layers as well, then only with use_sliding_window, and those from that layer on.
  KeyList keys = {};
  /// Sets transformers' defaults for absent keys, where ModelConfig has others.
  void (*set_defaults)(ModelConfig& config) = [](ModelConfig&) {};
  std::int64_t sliding_window = 0;  ///< transformers' default for windows that are in use
  // Keys whose defaults in transformers are numbers of its own; here an absent key is an error.
  bool needs_num_key_value_heads = false;
  bool needs_head_dim = false;
  bool needs_rope_theta = false;
  bool needs_rope_scaling = false;
  /// If a folder lacks the family's layer_types, every n-th layer has full attention; 0: none.
  std::int64_t full_attention_every = 1;
  WindowRope window_rope = WindowRope::same;
  bool qkv_bias = false;                                     ///< always on q, k and v
  bool ModelConfig::*o_bias = &ModelConfig::attention_bias;  ///< the key for the one on o
  QkNorm qk_norm = QkNorm::none;
  bool rotates_before_norm = false;  ///< LayerTraits::rotates_before_norm
  /// RoPE of type `dynamic` with an `alpha` stretches rope_theta by alpha^(E / (E - 2)).
  bool stretches_rope = false;
  /// The family's only rope_scaling is longrope, under any of its names; others do not have it.
  bool has_longrope = false;
  bool has_dynamic_rope = false;  ///< the family may have rope_scaling dynamic, too
  bool scales_queries = false;    ///< by llama_4_scaling_beta in the RoPE parameters
  /// Another key for partial_rotary_factor, in dims; null: none.
  const char* rotary_dims_name = nullptr;
  RotaryPairs rotary_pairs = RotaryPairs::halves;
  const char* fused_qkv = nullptr;      ///< the module as which folders store q, k and v
  bool groups_qkv = false;              ///< in its rows, each kv head's key and value follow on the
                                        ///< queries that see them
  const char* fused_gate_up = nullptr;  ///< the module as which folders store gate and up
  /// The keys that the family's dropout has in config.json, and their default.
  std::span<const char* const> dropout_names = {};
  double default_dropout = 0;
  /// Keys that must be null.
  std::span<const char* const> null_names = {};
  /// Keys that must be false.
  std::span<const char* const> false_names = {};
  /// Further keys in the family's folders that transformers does not read.
  std::span<const char* const> unread_names = {};
  ops::Activation activation = ops::Activation::swiglu;
  ActivationName activation_name = {"hidden_act", "silu"};
  /// Older folders have this key for it as well, and this value for it under either.
  ActivationName old_activation_name = {};
  /// The key for attention_bias, and for mlp_bias if the family takes it, which must then be equal;
  /// null: their own names.
  const char* bias_name = nullptr;
  /// Norms of the residual stream are LayerNorms, whose epsilon has this key; null: RMSNorms.
  const char* layer_norm_eps_name = nullptr;
  bool layer_norm_bias = true;
  bool parallel = false;         ///< LayerTraits::parallel
  bool has_logit_scale = false;  ///< folders have this, the inverse of logits_scaling
  /// transformers takes hidden_size / num_attention_heads, whatever head_dim says.
  bool derives_head_dim = false;
  float norm_offset = 0;                              ///< ModelTraits::norm_offset
  bool scales_embedding = false;                      ///< by the square root of hidden_size
  std::optional<ExpertCountNames> expert_count = {};  ///< for families with experts
  /// Experts and their router have biases, and folders have all experts in one tensor, transposed,
  /// with gate and up in turn.
  bool interleaved_experts = false;
  bool has_prediction_layers = false;       ///< Family::has_prediction_layers
  std::string_view prediction_prefix = {};  ///< Family::prediction_prefix
  std::string_view embed_tokens = "embed_tokens", lm_head = "lm_head";  ///< modules' names
  LayerNames names = {};
  /// Reads and writes keys in config.json that no other family has.
  void (*read_more)(const ConfigKeys& keys, ModelConfig& config) = [](const ConfigKeys&,
                                                                      ModelConfig&) {};
  void (*write_more)(const ModelConfig& config, nlohmann::ordered_json& json) =
      [](const ModelConfig&, nlohmann::ordered_json&) {};

  constexpr bool takes(std::string_view key) const { return keys.contains(key); }
  constexpr bool has_latent_attention() const { return takes("kv_lora_rank"); }
  /// Returns true if transformers 5 has RoPE parameters for each type of layer.
  constexpr bool has_rope_per_type() const {
    return window_rope == WindowRope::own_base || window_rope == WindowRope::unscaled;
  }
};

void read_llama_config(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& config);
void write_llama_config(const LlamaVariant& variant, const ModelConfig& config,
                        nlohmann::ordered_json& json);
void check_llama_config(const LlamaVariant& variant, const ModelConfig& config);
ParameterTable make_llama_table(const LlamaVariant& variant, const ModelConfig& config);
ModelTraits llama_traits(const LlamaVariant& variant, const ModelConfig& config);
/// Folders have a tensor for each expert, EXPERTS.number.NAME.weight, and fused or reordered ones
/// by the variant.
StateDict llama_state_dict(const LlamaVariant& variant, const ModelConfig& config,
                           const ParameterTable& table);

/// Returns xIELU's, which transformers has as buffers.
std::vector<StoredConstant> llama_constants(const ParameterTable& table);

/// Reads the RoPE parameters: rope_parameters in transformers 5, or rope_theta and rope_scaling in
/// older versions.
void read_rope(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& config);
/// Adds rope_theta and rope_scaling, which every version of transformers reads, and rope_parameters
/// where version 5 would read these otherwise.
void write_rope(const LlamaVariant& variant, const ModelConfig& config,
                nlohmann::ordered_json& json);
/// Throws a user error if the parameters do not fit together.
void check_rope(const LlamaVariant& variant, const ModelConfig& config);

/// Returns a family with Llama's layer.
template <const LlamaVariant& variant>
constexpr Family llama_like(std::string_view name, std::string_view architecture,
                            std::string_view other_architecture = {}) {
  return {
      .name = name,
      .architecture = architecture,
      .other_architecture = other_architecture,
      .base_prefix = "model.",
      .read_config = [](const ConfigKeys& keys,
                        ModelConfig& c) { read_llama_config(variant, keys, c); },
      .write_config = [](const ModelConfig& c,
                         nlohmann::ordered_json& json) { write_llama_config(variant, c, json); },
      .keys = llama_keys.with(variant.keys),
      .check = [](const ModelConfig& c) { check_llama_config(variant, c); },
      .make_table = [](const ModelConfig& c) { return make_llama_table(variant, c); },
      .traits = [](const ModelConfig& c) { return llama_traits(variant, c); },
      .has_prediction_layers = variant.has_prediction_layers,
      .prediction_prefix = variant.prediction_prefix,
      .state_dict = [](const ModelConfig& c,
                       const ParameterTable& table) { return llama_state_dict(variant, c, table); },
      .constants = llama_constants};
}

}  // namespace llamesh::model
