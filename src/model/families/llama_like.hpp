#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "model/config_keys.hpp"
#include "model/family.hpp"
#include "model/model_config.hpp"
#include "model/transformer_block.hpp"

namespace llamesh::model {

/// RMSNorm on queries and keys, before they are rotated.
enum class QkNorm { none, per_head, projection };

/// Layers that may have a sliding window.
enum class WindowedLayers {
  none,
  all,         ///< if sliding_window is set
  from_index,  ///< if use_sliding_window is true: those from max_window_layers on
};

/// Keys of the experts in config.json.
struct ExpertKeys {
  const char* count;         ///< their number, by the name that all versions of transformers read
  const char* second_count;  ///< its name in other versions
  bool own_size = false;     ///< moe_intermediate_size, and the keys of layers without experts
  bool has_norm_topk_prob = false;  ///< otherwise a token's weights always add up to 1
};

/// Switches of a family whose layer is Llama's.
struct LlamaVariant {
  bool has_attention_bias = false;  ///< the key attention_bias: on q, k, v and o
  bool has_mlp_bias = false;        ///< the key mlp_bias
  bool qkv_bias = false;            ///< always on q, k and v
  QkNorm qk_norm = QkNorm::none;
  WindowedLayers windowed_layers = WindowedLayers::none;
  std::optional<ExpertKeys> experts = {};
  LayerNames names = {};
  // transformers' defaults for absent keys
  double rms_norm_eps = 1e-6;
  // Sizes for which transformers has a number of its own; here an absent key is an error.
  bool needs_num_key_value_heads = false;
  bool needs_head_dim = false;
  std::int64_t sliding_window = 0;
  double rope_theta = 10000.0;
};

void read_llama_config(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& config);
void write_llama_config(const LlamaVariant& variant, const ModelConfig& config,
                        nlohmann::ordered_json& json);
bool has_llama_key(const LlamaVariant& variant, std::string_view key);
void check_llama_config(const LlamaVariant& variant, const ModelConfig& config);
ParameterTable make_llama_table(const LlamaVariant& variant, const ModelConfig& config);
/// Folders have a tensor for each expert: EXPERTS.number.NAME.weight.
StateDict experts_state_dict(const ParameterTable& table);

/// Reads the RoPE parameters: rope_parameters in transformers 5, or rope_theta and rope_scaling in
/// older versions.
void read_rope(const ConfigKeys& keys, ModelConfig& config);
/// Adds rope_theta and rope_scaling, which every version of transformers reads.
void write_rope(const ModelConfig& config, nlohmann::ordered_json& json);
/// Throws a user error if the parameters do not fit together.
void check_rope(const ModelConfig& config);

/// Returns a family with Llama's layer.
template <const LlamaVariant& variant>
constexpr Family llama_like(std::string_view name, std::string_view architecture) {
  return {
      .name = name,
      .architecture = architecture,
      .base_prefix = "model.",
      .read_config = [](const ConfigKeys& keys,
                        ModelConfig& c) { read_llama_config(variant, keys, c); },
      .write_config = [](const ModelConfig& c,
                         nlohmann::ordered_json& json) { write_llama_config(variant, c, json); },
      .has_key = [](std::string_view key) { return has_llama_key(variant, key); },
      .check = [](const ModelConfig& c) { check_llama_config(variant, c); },
      .make_table = [](const ModelConfig& c) { return make_llama_table(variant, c); },
      .make_block =
          [](const ModelConfig& c, const ParameterTable& table, std::size_t index) {
            return make_transformer_block(c, table, index, variant.names);
          },
      .state_dict = variant.experts ? experts_state_dict : plain_state_dict};
}

}  // namespace llamesh::model
