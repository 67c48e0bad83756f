#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/families/llama_like.hpp"

// Families with latent attention.

namespace llamesh::model {
namespace {

constexpr const char* deepseek_unread[] = {"aux_loss_alpha", "ep_size", "num_mtp_layers",
                                           "num_nextn_predict_layers", "seq_aux"};

constexpr KeyList deepseek_keys{
    "attention_bias",   "q_lora_rank",           "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim",      "v_head_dim",
    "num_experts",      "num_experts_per_tok",   "n_group",
    "topk_group",       "moe_intermediate_size", "shared_expert_intermediate_size",
    "norm_topk_prob",   "routed_scaling_factor"};

constexpr LlamaVariant deepseek_v3{
    .keys = deepseek_keys.with({"first_k_dense_replace", "router_bias_update_rate"}),
    .set_defaults =
        [](ModelConfig& c) {
          c.rms_norm_eps = 1e-6;
          c.first_k_dense_replace = 3;
          c.n_group = 8;
          c.topk_group = 4;
          c.routed_scaling_factor = 2.5;
        },
    .needs_num_key_value_heads = true,
    .rotary_pairs = RotaryPairs::interleaved,
    .unread_names = deepseek_unread,
    .expert_count =
        ExpertCountNames{
            .name = "n_routed_experts", .other = "num_local_experts", .shared = "n_shared_experts"},
    .has_prediction_layers = true,
    .names = {.router = "gate",
              .experts = "experts",
              .selection_bias = "gate.e_score_correction_bias",
              .shared_expert = "shared_experts"}};

/// DeepSeek-V2's routers choose from groups only by one of two methods.
void read_topk_method(const ConfigKeys& keys, ModelConfig& c) {
  const auto method = keys.text("topk_method");
  if (method.empty() || method == "greedy") {
    c.n_group = c.topk_group = 1;
  } else {
    validate(method == "group_limited_greedy",
             "{}: topk_method is '{}'; llamesh computes greedy and group_limited_greedy",
             keys.name(), excerpt(method));
    c.n_group = keys.size("n_group");
    c.topk_group = keys.size("topk_group");
  }
  const auto* scores = keys.find("scoring_func");
  validate(scores == nullptr || *scores == "softmax",
           "{}: scoring_func is {}; llamesh computes \"softmax\" only", keys.name(),
           keys.shown("scoring_func"));
}

void write_topk_method(const ModelConfig& c, nlohmann::ordered_json& json) {
  json["topk_method"] = c.n_group > 1 ? "group_limited_greedy" : "greedy";
}

constexpr const char* deepseek_v2_switches[] = {"norm_topk_prob"};  // transformers ignores it

constexpr LlamaVariant deepseek_v2 = [] {
  auto variant = deepseek_v3;
  variant.keys = deepseek_keys.with({"first_k_dense_replace", "mlp_bias"});
  variant.false_names = deepseek_v2_switches;
  variant.set_defaults = [](ModelConfig& c) {
    c.rms_norm_eps = 1e-6;
    c.norm_topk_prob = false;
  };
  variant.needs_num_key_value_heads = false;
  variant.expert_count->other = "num_experts";
  variant.names.selection_bias = {};
  variant.read_more = read_topk_method;
  variant.write_more = write_topk_method;
  return variant;
}();

constexpr std::string_view dense_mlp = "dense", sparse_mlp = "sparse";

/// transformers 5 has each layer's kind in a list.
void read_mlp_types(const ConfigKeys& keys, ModelConfig& c) {
  validate(keys.size_or("first_k_dense_replace", 1) == 1,
           "{}: first_k_dense_replace is {}; transformers reads mlp_layer_types instead",
           keys.name(), keys.shown("first_k_dense_replace"));
  c.mlp_only_layers = {0};
  if (!keys.has("mlp_layer_types")) return;
  c.mlp_only_layers.clear();
  const auto types = keys.texts("mlp_layer_types");
  const bool known = std::ranges::all_of(
      types, [](std::string_view type) { return type == dense_mlp || type == sparse_mlp; });
  validate(known && std::ssize(types) == c.num_hidden_layers,
           "{}: mlp_layer_types is {}; llamesh computes 'dense' and 'sparse', for each layer",
           keys.name(), keys.shown("mlp_layer_types"));
  for (std::size_t i = 0; i < types.size(); ++i)
    if (types[i] == dense_mlp) c.mlp_only_layers.push_back(static_cast<std::int64_t>(i));
}

void write_mlp_types(const ModelConfig& c, nlohmann::ordered_json& json) {
  json.erase("mlp_only_layers");
  auto& types = json["mlp_layer_types"];
  types = nlohmann::ordered_json::array();
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i)
    types.push_back(c.has_experts(i) ? sparse_mlp : dense_mlp);
}

constexpr LlamaVariant glm4_moe_lite = [] {
  auto variant = deepseek_v3;
  variant.keys = deepseek_keys.with({"mlp_only_layers", "router_bias_update_rate"});
  variant.set_defaults = [](ModelConfig& c) { c.routed_scaling_factor = 1.8; };
  variant.read_more = read_mlp_types;
  variant.write_more = write_mlp_types;
  return variant;
}();

constexpr Family latent_families[] = {
    llama_like<deepseek_v2>("deepseek_v2", "DeepseekV2ForCausalLM"),
    llama_like<deepseek_v3>("deepseek_v3", "DeepseekV3ForCausalLM"),
    llama_like<deepseek_v3>("kimi_k2", "DeepseekV3ForCausalLM"),
    llama_like<glm4_moe_lite>("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
};

}  // namespace

std::span<const Family> deepseek_families() {
  return latent_families;
}

}  // namespace llamesh::model
