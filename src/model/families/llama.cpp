#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/families/llama_like.hpp"

// Llama, and the families that differ from it by switches.

namespace llamesh::model {
namespace {

// transformers' default, where other families have our 1e-5.
constexpr auto eps_1e_6 = [](ModelConfig& c) { c.rms_norm_eps = 1e-6; };

constexpr LlamaVariant llama{.keys = {"attention_bias", "mlp_bias"}, .set_defaults = eps_1e_6};

constexpr LlamaVariant mistral{.keys = {"sliding_window"},
                               .set_defaults = eps_1e_6,
                               .sliding_window = 4096,
                               .needs_num_key_value_heads = true};

constexpr LlamaVariant qwen2{.keys = {"sliding_window", "max_window_layers"},
                             .set_defaults = eps_1e_6,
                             .sliding_window = 4096,
                             .needs_num_key_value_heads = true,
                             .qkv_bias = true};

constexpr const char* mimo_unread[] = {"num_nextn_predict_layers"};

constexpr LlamaVariant mimo = [] {
  auto variant = qwen2;
  variant.unread_names = mimo_unread;
  variant.prediction_prefix = "model.mtp_layers.";
  variant.read_more = [](const ConfigKeys& keys, ModelConfig&) {
    validate(keys.flag("attention_bias", true),
             "{}: attention_bias is false; llamesh computes true only, as Qwen2's class does",
             keys.name());
  };
  // The family's own class would make these layers, with random weights.
  variant.write_more = [](const ModelConfig&, nlohmann::ordered_json& json) {
    json.erase("num_nextn_predict_layers");
    json["num_nextn_predict_layers"] = 0;
  };
  return variant;
}();

constexpr LlamaVariant qwen3{.keys = {"attention_bias", "sliding_window", "max_window_layers"},
                             .set_defaults = eps_1e_6,
                             .sliding_window = 4096,
                             .needs_num_key_value_heads = true,
                             .needs_head_dim = true,
                             .qk_norm = QkNorm::per_head};

constexpr LayerNames norms_after{.norm_before_attention = "",
                                 .norm_after_attention = "post_attention_layernorm",
                                 .norm_before_mlp = "",
                                 .norm_after_mlp = "post_feedforward_layernorm"};

constexpr LlamaVariant olmo2{
    .keys = {"attention_bias"}, .qk_norm = QkNorm::projection, .names = norms_after};

constexpr LlamaVariant olmo3{.keys = {"attention_bias", "sliding_window", "layer_types"},
                             .sliding_window = 4096,
                             .needs_rope_theta = true,
                             .full_attention_every = 4,
                             .window_rope = WindowRope::unscaled,
                             .qk_norm = QkNorm::projection,
                             .names = norms_after};

constexpr LlamaVariant exaone4{.keys = {"sliding_window", "layer_types"},
                               .sliding_window = 4096,
                               .needs_num_key_value_heads = true,
                               .full_attention_every = 4,
                               .window_rope = WindowRope::only_windowed,
                               .qk_norm = QkNorm::per_head,
                               .names = norms_after};

constexpr LlamaVariant smollm3{.keys = {"attention_bias", "mlp_bias", "no_rope_layers"},
                               .set_defaults =
                                   [](ModelConfig& c) {
                                     c.rms_norm_eps = 1e-6;
                                     c.tie_word_embeddings = true;
                                     c.rope_theta = 2e6;
                                   },
                               .needs_num_key_value_heads = true};

constexpr LlamaVariant ministral{.keys = {"sliding_window", "layer_types"},
                                 .set_defaults = eps_1e_6,
                                 .sliding_window = 4096,
                                 .needs_num_key_value_heads = true,
                                 .full_attention_every = 0};

/// The family's own code reads the two kinds of biases by two keys, transformers by its own names,
/// and only if they are equal.
void read_internlm3(const ConfigKeys& keys, ModelConfig& c) {
  const auto *inner = keys.either("qkv_bias", "attention_bias"),
             *others = keys.either("bias", "mlp_bias");
  c.attention_bias = keys.flag(inner);
  validate(keys.flag(others) == c.attention_bias,
           "{}: {} is {}, but {} is {}; llamesh computes the family with both or none", keys.name(),
           inner, keys.shown(inner), others, keys.shown(others));
}

constexpr LlamaVariant internlm3{
    .keys = {"attention_bias", "mlp_bias"},
    .needs_num_key_value_heads = true,
    .needs_head_dim = true,
    .has_dynamic_rope = true,
    .bias_name = "qkv_bias",
    .read_more = read_internlm3,
    .write_more = [](const ModelConfig& c, nlohmann::ordered_json& json) {
      json.erase("bias");  // it is last, also if an export is exported again
      json["bias"] = c.mlp_bias;
    }};

constexpr LlamaVariant internlm2{.keys = {"attention_bias"},
                                 .set_defaults =
                                     [](ModelConfig& c) {
                                       c.rms_norm_eps = 1e-6;
                                       c.attention_bias = true;
                                     },
                                 .has_dynamic_rope = true,
                                 .fused_qkv = "wqkv",
                                 .groups_qkv = true,
                                 .bias_name = "bias",
                                 .derives_head_dim = true,
                                 .embed_tokens = "tok_embeddings",
                                 .lm_head = "output",
                                 .names = {.attention = "attention",
                                           .o_proj = "wo",
                                           .mlp = "feed_forward",
                                           .gate_proj = "w1",
                                           .up_proj = "w3",
                                           .down_proj = "w2",
                                           .norm_before_attention = "attention_norm",
                                           .norm_before_mlp = "ffn_norm"}};

constexpr const char* seed_oss_dropouts[] = {"attention_dropout", "residual_dropout"};

constexpr LlamaVariant seed_oss{
    .keys = {"attention_bias", "attention_out_bias", "mlp_bias", "dropout"},
    .set_defaults =
        [](ModelConfig& c) {
          c.rms_norm_eps = 1e-6;
          c.attention_bias = true;
        },
    .needs_num_key_value_heads = true,
    .needs_head_dim = true,
    .o_bias = &ModelConfig::attention_out_bias,
    .dropout_names = seed_oss_dropouts,
    .default_dropout = 0.1};

constexpr LlamaVariant ministral3{.keys = {"sliding_window"},
                                  .needs_num_key_value_heads = true,
                                  .needs_head_dim = true,
                                  .needs_rope_scaling = true,
                                  .scales_queries = true};

constexpr const char* phi3_dropouts[] = {"resid_pdrop", "embd_pdrop", "attention_dropout"};
constexpr const char* phi3_unread[] = {"full_attn_mod", "interpolate_factor"};

constexpr LlamaVariant phi3{.keys = {"partial_rotary_factor", "sliding_window", "dropout"},
                            .has_longrope = true,
                            .fused_qkv = "qkv_proj",
                            .fused_gate_up = "gate_up_proj",
                            .dropout_names = phi3_dropouts,
                            .unread_names = phi3_unread};

constexpr const char* hunyuan_unread[] = {
    "attention_head_dim", "cla_share_factor", "dense_list",        "im_end_id",
    "im_newline_id",      "im_start_id",      "image_token_id",    "mask_init_id",
    "norm_type",          "num_experts",      "num_media_embeds",  "num_shared_expert",
    "org_vocab_size",     "pad_id",           "pool_type",         "text_end_id",
    "text_start_id",      "use_qk_norm",      "use_rotary_pos_emb"};

constexpr LlamaVariant hunyuan{.keys = {"attention_bias"},
                               .qk_norm = QkNorm::per_head,
                               .rotates_before_norm = true,
                               .stretches_rope = true,
                               .unread_names = hunyuan_unread,
                               .names = {.q_norm = "query_layernorm", .k_norm = "key_layernorm"}};

constexpr LlamaVariant ernie{.keys = {"attention_bias", "mlp_bias"},
                             .set_defaults =
                                 [](ModelConfig& c) {
                                   c.tie_word_embeddings = true;
                                   c.rope_theta = 5e5;
                                 },
                             .needs_num_key_value_heads = true,
                             .needs_head_dim = true,
                             .rotary_pairs = RotaryPairs::interleaved,
                             .bias_name = "use_bias"};

constexpr LlamaVariant helium{.keys = {"attention_bias", "mlp_bias"},
                              .set_defaults =
                                  [](ModelConfig& c) {
                                    c.rms_norm_eps = 1e-8;
                                    c.rope_theta = 1e5;
                                  },
                              .needs_num_key_value_heads = true,
                              .needs_head_dim = true,
                              .o_bias = &ModelConfig::attention_out_bias,
                              .rotary_pairs = RotaryPairs::interleaved,
                              .derives_head_dim = true};

constexpr LlamaVariant glm{.keys = {"attention_bias", "partial_rotary_factor"},
                           .set_defaults =
                               [](ModelConfig& c) {
                                 c.rms_norm_eps = 1.5625e-7;
                                 c.attention_bias = true;
                                 c.partial_rotary_factor = 0.5;
                               },
                           .needs_num_key_value_heads = true,
                           .needs_head_dim = true,
                           .o_bias = &ModelConfig::attention_out_bias,
                           .rotary_pairs = RotaryPairs::interleaved,
                           .fused_gate_up = "gate_up_proj"};

constexpr LlamaVariant glm4 = [] {
  auto variant = glm;
  variant.names.norm_after_attention = "post_self_attn_layernorm";
  variant.names.norm_after_mlp = "post_mlp_layernorm";
  return variant;
}();

constexpr LlamaVariant granite{
    .keys = {"attention_bias", "mlp_bias", "attention_multiplier", "embedding_multiplier",
             "residual_multiplier", "logits_scaling"},
    .set_defaults = [](ModelConfig& c) {
      c.rms_norm_eps = 1e-6;
      c.attention_multiplier = 1;
    }};

/// Granite 4's models may have Mamba layers and experts; the dense ones have neither, and their MLP
/// is the one beside the experts.
void read_granite4(const ConfigKeys& keys, ModelConfig& c) {
  c.intermediate_size = keys.size("shared_intermediate_size");
  const auto refuse = [&](const char* key, const char* computed) {
    fail(ExitCode::bad_input, "{}: {} is {}; llamesh computes {} only", keys.name(), key,
         keys.shown(key), computed);
  };
  const auto* experts = keys.find("num_local_experts");
  if (experts == nullptr || *experts != 0) refuse("num_local_experts", "0");
  if (keys.text("position_embedding_type") != "rope") refuse("position_embedding_type", "rope");
  const auto types = keys.texts("layer_types");
  const auto attends = [](std::string_view type) {
    return type == "attention" || type == full_attention;
  };
  if (std::ssize(types) != c.num_hidden_layers || !std::ranges::all_of(types, attends))
    refuse("layer_types", "full_attention in each layer");
  keys.ignore({"init_method", "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head",
               "mamba_d_state", "mamba_expand", "mamba_n_groups", "mamba_n_heads",
               "mamba_proj_bias", "normalization_function", "num_experts_per_tok",
               "router_aux_loss_coef", "time_step_limit", "time_step_max", "time_step_min"});
}

void write_granite4(const ModelConfig& c, nlohmann::ordered_json& json) {
  json["shared_intermediate_size"] = c.intermediate_size;
  json["num_local_experts"] = 0;
  json["position_embedding_type"] = "rope";
  json["layer_types"] =
      std::vector<std::string>(static_cast<std::size_t>(c.num_hidden_layers), "attention");
  if (json.contains("mamba_n_heads")) return;
  json["mamba_n_heads"] = 1;  // transformers checks it against hidden_size, layers or not
}

constexpr LlamaVariant granite4 = [] {
  auto variant = granite;
  variant.keys = {"attention_bias", "attention_multiplier", "embedding_multiplier",
                  "residual_multiplier", "logits_scaling"};
  variant.fused_gate_up = "input_linear";
  variant.names.mlp = "shared_mlp";
  variant.names.down_proj = "output_linear";
  variant.read_more = read_granite4;
  variant.write_more = write_granite4;
  return variant;
}();

constexpr const char* cohere_switches[] = {"use_qk_norm"};

constexpr LlamaVariant cohere{.keys = {"attention_bias", "layer_norm_epsilon", "logits_scaling"},
                              .set_defaults =
                                  [](ModelConfig& c) {
                                    c.tie_word_embeddings = true;
                                    c.logits_scaling = 16;
                                  },
                              .needs_rope_theta = true,
                              .rotary_pairs = RotaryPairs::interleaved,
                              .false_names = cohere_switches,
                              .layer_norm_eps_name = "layer_norm_eps",
                              .layer_norm_bias = false,
                              .parallel = true,
                              .has_logit_scale = true,
                              .names = {.norm_before_mlp = ""}};

constexpr const char* cohere2_unread[] = {
    "layer_switch",       "order_of_interleaved_layers", "position_embedding_type",
    "rotary_pct",         "use_embedding_sharing",       "use_gated_activation",
    "use_parallel_block", "use_parallel_embedding",      "use_qk_norm"};

constexpr LlamaVariant cohere2 = [] {
  auto variant = cohere;
  variant.keys = {"attention_bias", "layer_norm_epsilon", "logits_scaling", "sliding_window",
                  "layer_types"};
  variant.sliding_window = 4096;
  variant.full_attention_every = 4;
  variant.window_rope = WindowRope::windowed;
  variant.needs_rope_theta = false;
  variant.derives_head_dim = true;
  variant.false_names = {};
  variant.unread_names = cohere2_unread;
  return variant;
}();

constexpr LlamaVariant arcee{.keys = {"attention_bias", "mlp_bias"},
                             .activation = ops::Activation::squared_relu,
                             .activation_name = {"hidden_act", "relu2"}};

constexpr LlamaVariant apertus{.keys = {"attention_bias"},
                               .set_defaults = [](ModelConfig& c) { c.rope_theta = 1.2e7; },
                               .needs_rope_scaling = true,
                               .qk_norm = QkNorm::per_head,
                               .activation = ops::Activation::xielu,
                               .activation_name = {"hidden_act", "xielu"},
                               .names = {.norm_before_attention = "attention_layernorm",
                                         .norm_before_mlp = "feedforward_layernorm"}};

constexpr LlamaVariant nemotron{
    .keys = {"attention_bias", "mlp_bias", "partial_rotary_factor", "layer_norm_epsilon"},
    .set_defaults =
        [](ModelConfig& c) {
          c.partial_rotary_factor = 0.5;
          c.initializer_range = 0.0134;
        },
    .activation = ops::Activation::squared_relu,
    .activation_name = {"hidden_act", "relu2"},
    .layer_norm_eps_name = "norm_eps",
    .norm_offset = 1};

constexpr const char* starcoder2_dropouts[] = {"attention_dropout", "residual_dropout",
                                               "embedding_dropout"};

constexpr LlamaVariant starcoder2{
    .keys = {"attention_bias", "mlp_bias", "sliding_window", "layer_norm_epsilon", "dropout"},
    .set_defaults =
        [](ModelConfig& c) {
          c.attention_bias = true;
          c.tie_word_embeddings = true;
          c.initializer_range = 0.018042;
        },
    .needs_num_key_value_heads = true,
    .dropout_names = starcoder2_dropouts,
    .activation = ops::Activation::gelu,
    .activation_name = {"hidden_act", "gelu_pytorch_tanh"},
    .bias_name = "use_bias",
    .layer_norm_eps_name = "norm_epsilon",
    .names = {.up_proj = "c_fc", .down_proj = "c_proj"}};

constexpr LlamaVariant gemma{.keys = {"attention_bias"},
                             .set_defaults =
                                 [](ModelConfig& c) {
                                   c.rms_norm_eps = 1e-6;
                                   c.tie_word_embeddings = true;
                                 },
                             .needs_num_key_value_heads = true,
                             .needs_head_dim = true,
                             .activation = ops::Activation::geglu,
                             .activation_name = {"hidden_act", "gelu_pytorch_tanh"},
                             .old_activation_name = {"hidden_activation", "gelu"},
                             .norm_offset = 1,
                             .scales_embedding = true};

constexpr LayerNames gemma_norms{.norm_after_attention = "post_attention_layernorm",
                                 .norm_before_mlp = "pre_feedforward_layernorm",
                                 .norm_after_mlp = "post_feedforward_layernorm"};

constexpr const char* gemma2_unread[] = {"hidden_act"};

constexpr LlamaVariant gemma2{
    .keys = {"attention_bias", "sliding_window", "layer_types", "query_pre_attn_scalar",
             "attn_logit_softcapping", "final_logit_softcapping"},
    .set_defaults =
        [](ModelConfig& c) {
          c.rms_norm_eps = 1e-6;
          c.tie_word_embeddings = true;
          c.query_pre_attn_scalar = 256;
          c.attn_logit_softcapping = 50;
          c.final_logit_softcapping = 30;
        },
    .sliding_window = 4096,
    .needs_num_key_value_heads = true,
    .needs_head_dim = true,
    .full_attention_every = 2,
    .unread_names = gemma2_unread,
    .activation = ops::Activation::geglu,
    .activation_name = {"hidden_activation", "gelu_pytorch_tanh"},
    .norm_offset = 1,
    .scales_embedding = true,
    .names = gemma_norms};

constexpr LlamaVariant gemma3{.keys = {"attention_bias", "sliding_window", "layer_types",
                                       "rope_local_base_freq", "query_pre_attn_scalar"},
                              .set_defaults =
                                  [](ModelConfig& c) {
                                    c.rms_norm_eps = 1e-6;
                                    c.tie_word_embeddings = true;
                                    c.rope_theta = 1e6;
                                    c.query_pre_attn_scalar = 256;
                                  },
                              .sliding_window = 4096,
                              .needs_num_key_value_heads = true,
                              .needs_head_dim = true,
                              .full_attention_every = 6,
                              .window_rope = WindowRope::own_base,
                              .qk_norm = QkNorm::per_head,
                              .activation = ops::Activation::geglu,
                              .activation_name = {"hidden_activation", "gelu_pytorch_tanh"},
                              .norm_offset = 1,
                              .scales_embedding = true,
                              .names = gemma_norms};

constexpr LlamaVariant mixtral{
    .keys = {"sliding_window", "num_experts", "num_experts_per_tok", "output_router_logits",
             "router_aux_loss_coef", "router_z_loss_coef"},
    .set_defaults = [](ModelConfig& c) { c.rope_theta = 1e6; },
    .needs_num_key_value_heads = true,
    .expert_count = ExpertCountNames{.name = "num_local_experts", .other = "num_experts"},
    .names = {.mlp = "block_sparse_moe",
              .gate_proj = "w1",
              .up_proj = "w3",
              .down_proj = "w2",
              .router = "gate",
              .experts = "experts"}};

constexpr LlamaVariant qwen3_moe{
    .keys = {"attention_bias", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
             "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "output_router_logits",
             "router_aux_loss_coef", "router_z_loss_coef"},
    .set_defaults =
        [](ModelConfig& c) {
          c.rms_norm_eps = 1e-6;
          c.norm_topk_prob = false;
        },
    .needs_num_key_value_heads = true,
    .qk_norm = QkNorm::per_head,
    .expert_count = ExpertCountNames{.name = "num_experts", .other = "num_local_experts"},
    .names = {.router = "gate", .experts = "experts"}};

constexpr LlamaVariant qwen2_moe{
    .keys = {"attention_bias", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
             "shared_expert_intermediate_size", "decoder_sparse_step", "mlp_only_layers",
             "norm_topk_prob", "output_router_logits", "router_aux_loss_coef",
             "router_z_loss_coef"},
    .set_defaults =
        [](ModelConfig& c) {
          c.rms_norm_eps = 1e-6;
          c.attention_bias = true;
          c.norm_topk_prob = false;
        },
    .needs_num_key_value_heads = true,
    .o_bias = &ModelConfig::attention_out_bias,
    .bias_name = "qkv_bias",
    .expert_count = ExpertCountNames{.name = "num_experts", .other = "num_local_experts"},
    .names = {.router = "gate",
              .experts = "experts",
              .shared_expert = "shared_expert",
              .shared_expert_gate = "shared_expert_gate"}};

constexpr const char* olmoe_nulls[] = {"clip_qkv"};

constexpr LlamaVariant olmoe{
    .keys = {"attention_bias", "num_experts", "num_experts_per_tok", "norm_topk_prob",
             "output_router_logits", "router_aux_loss_coef", "router_z_loss_coef"},
    .set_defaults =
        [](ModelConfig& c) {
          c.norm_topk_prob = false;
          c.router_aux_loss_coef = 0.01;
        },
    .qk_norm = QkNorm::projection,
    .null_names = olmoe_nulls,
    .expert_count = ExpertCountNames{.name = "num_experts", .other = "num_local_experts"},
    .names = {.router = "gate", .experts = "experts"}};

constexpr const char* glm4_moe_unread[] = {"num_nextn_predict_layers", "num_mtp_layers"};

constexpr LlamaVariant glm4_moe{
    .keys = {"attention_bias", "use_qk_norm", "partial_rotary_factor", "num_experts",
             "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
             "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
             "router_bias_update_rate", "norm_topk_prob"},
    .set_defaults =
        [](ModelConfig& c) {
          c.partial_rotary_factor = 0.5;
          c.first_k_dense_replace = 1;
        },
    .needs_num_key_value_heads = true,
    .o_bias = &ModelConfig::attention_out_bias,
    .qk_norm = QkNorm::per_head,
    .unread_names = glm4_moe_unread,
    .expert_count =
        ExpertCountNames{
            .name = "n_routed_experts", .other = "num_local_experts", .shared = "n_shared_experts"},
    .has_prediction_layers = true,
    .names = {.router = "gate",
              .experts = "experts",
              .selection_bias = "gate.e_score_correction_bias",
              .shared_expert = "shared_experts"}};

constexpr const char* dots1_unread[] = {"scoring_func"};

/// transformers computes windows by these keys, but published models have none.
void read_dots1(const ConfigKeys& keys, ModelConfig& c) {
  constexpr std::int64_t default_max_window_layers = 62;
  keys.ignore({"sliding_window", "max_window_layers"});
  const auto first =
      keys.has("max_window_layers") ? keys.size("max_window_layers", 0) : default_max_window_layers;
  validate(
      keys.has("layer_types") || keys.is_null("sliding_window") || first >= c.num_hidden_layers,
      "{}: layers from max_window_layers {} on have sliding_window {}; llamesh computes the "
      "family {} without windows",
      keys.name(), first, keys.shown("sliding_window"), c.family);
  validate(keys.size_or("moe_layer_freq", 1) == 1,
           "{}: moe_layer_freq is {}, which transformers ignores; llamesh computes 1 only",
           keys.name(), keys.shown("moe_layer_freq"));
}

constexpr LlamaVariant dots1 = [] {
  auto variant = glm4_moe;
  variant.keys = {"attention_bias",
                  "num_experts",
                  "num_experts_per_tok",
                  "moe_intermediate_size",
                  "shared_expert_intermediate_size",
                  "first_k_dense_replace",
                  "n_group",
                  "topk_group",
                  "routed_scaling_factor",
                  "router_bias_update_rate",
                  "norm_topk_prob"};
  variant.set_defaults = [](ModelConfig& c) {
    c.rms_norm_eps = 1e-6;
    c.norm_topk_prob = false;
  };
  variant.o_bias = &ModelConfig::attention_bias;
  variant.unread_names = dots1_unread;
  variant.has_prediction_layers = false;
  variant.read_more = read_dots1;
  variant.write_more = [](const ModelConfig&, nlohmann::ordered_json& json) {
    json["sliding_window"] = nullptr;
  };
  return variant;
}();

constexpr const char* ling2_unread[] = {"mtp_loss_scaling_factor", "num_nextn_predict_layers"};

/// The family's own code computes this whatever the keys say. Other tools read them.
void read_ling2(const ConfigKeys& keys, ModelConfig& c) {
  for (const auto* key : {"moe_router_enable_expert_bias", "moe_router_enable_routed_scaling",
                          "moe_router_enable_shared_expert", "norm_topk_prob", "use_rmsnorm"})
    validate(keys.flag(key, true), "{}: {} is false; llamesh computes true only", keys.name(), key);
  for (const auto& [key, computed] :
       {std::pair("score_function", "sigmoid"), {"router_dtype", "fp32"}}) {
    const auto text = keys.text(key);
    validate(text.empty() || text == computed, "{}: {} is '{}'; llamesh computes {} only",
             keys.name(), key, excerpt(text), computed);
  }
  constexpr const char* shared = "moe_shared_expert_intermediate_size";
  validate(keys.size_or(shared, c.moe_intermediate_size) == c.moe_intermediate_size,
           "{}: {} is {}, but moe_intermediate_size {}; they must be equal", keys.name(), shared,
           keys.shown(shared), c.moe_intermediate_size);
  validate(c.num_experts_per_tok > 1,
           "{}: num_experts_per_tok is 1; the family's code then has weights that do not add up to "
           "1, and llamesh does not",
           keys.name());
  c.attention_out_bias = keys.flag("use_bias");
}

constexpr LlamaVariant ling2{
    .keys = {"attention_bias", "attention_out_bias", "use_qk_norm", "partial_rotary_factor",
             "num_experts", "num_experts_per_tok", "moe_intermediate_size",
             "shared_expert_intermediate_size", "first_k_dense_replace", "n_group", "topk_group",
             "routed_scaling_factor", "router_bias_update_rate"},
    .set_defaults =
        [](ModelConfig& c) {
          c.rms_norm_eps = 1e-6;
          c.rope_theta = 6e5;
          c.use_qk_norm = true;
          c.first_k_dense_replace = 1;
          c.n_group = 8;
          c.topk_group = 4;
        },
    .needs_num_key_value_heads = true,
    .needs_head_dim = true,
    .o_bias = &ModelConfig::attention_out_bias,
    .qk_norm = QkNorm::per_head,
    .fused_qkv = "query_key_value",
    .unread_names = ling2_unread,
    .bias_name = "use_qkv_bias",
    .expert_count =
        ExpertCountNames{
            .name = "num_experts", .other = "num_local_experts", .shared = "num_shared_experts"},
    .has_prediction_layers = true,
    .embed_tokens = "word_embeddings",
    .names = {.attention = "attention",
              .o_proj = "dense",
              .q_norm = "query_layernorm",
              .k_norm = "key_layernorm",
              .router = "gate",
              .experts = "experts",
              .selection_bias = "gate.expert_bias",
              .shared_expert = "shared_experts"},
    .read_more = read_ling2,
    .write_more =
        [](const ModelConfig& c, nlohmann::ordered_json& json) {
          for (const auto* key : {"attention_out_bias", "use_bias", "num_nextn_predict_layers"})
            json.erase(key);
          json["use_bias"] = c.attention_out_bias;
          json["num_nextn_predict_layers"] = 0;
        }};

constexpr const char* minimax_m2_unread[] = {"router_aux_loss_coef"};

constexpr LlamaVariant minimax_m2{
    .keys = {"partial_rotary_factor", "num_experts", "num_experts_per_tok",
             "router_bias_update_rate"},
    .set_defaults =
        [](ModelConfig& c) {
          c.rms_norm_eps = 1e-6;
          c.rope_theta = 5e6;
        },
    .needs_num_key_value_heads = true,
    .needs_head_dim = true,
    .qk_norm = QkNorm::projection,
    .rotary_dims_name = "rotary_dim",
    .unread_names = minimax_m2_unread,
    .expert_count = ExpertCountNames{.name = "num_local_experts", .other = "num_experts"},
    .names = {.mlp = "block_sparse_moe",
              .gate_proj = "w1",
              .up_proj = "w3",
              .down_proj = "w2",
              .router = "gate",
              .experts = "experts",
              .selection_bias = "e_score_correction_bias"}};

constexpr const char* gpt_oss_unread[] = {"experts_per_token", "initial_context_length"};

/// Before version 5, transformers computed these numbers whatever the keys said.
void read_gpt_oss(const ConfigKeys& keys, ModelConfig& /*c*/) {
  for (const auto& [key, computed] : {std::pair("swiglu_alpha", 1.702), {"swiglu_limit", 7.0}})
    validate(keys.number(key, computed) == computed, "{}: {} is {}; llamesh computes {} only",
             keys.name(), key, keys.shown(key), computed);
}

constexpr LlamaVariant gpt_oss{
    .keys = {"attention_bias", "sliding_window", "layer_types", "num_experts",
             "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef",
             "router_z_loss_coef"},
    .set_defaults =
        [](ModelConfig& c) {
          c.attention_bias = true;
          c.rope_theta = 1.5e5;
        },
    .sliding_window = 128,
    .needs_num_key_value_heads = true,
    .needs_head_dim = true,
    .needs_rope_scaling = true,
    .full_attention_every = 2,
    .unread_names = gpt_oss_unread,
    .activation = ops::Activation::clamped_swiglu,
    .expert_count = ExpertCountNames{.name = "num_local_experts", .other = "num_experts"},
    .interleaved_experts = true,
    .names = {.sinks = "sinks", .router = "router", .experts = "experts"},
    .read_more = read_gpt_oss};

constexpr Family all_families[] = {
    llama_like<llama>("llama", "LlamaForCausalLM"),
    llama_like<mistral>("mistral", "MistralForCausalLM"),
    llama_like<ministral>("ministral", "MinistralForCausalLM"),
    llama_like<ministral3>("ministral3", "Ministral3ForCausalLM"),
    llama_like<qwen2>("qwen2", "Qwen2ForCausalLM"),
    llama_like<mimo>("mimo", "MiMoForCausalLM"),
    llama_like<qwen3>("qwen3", "Qwen3ForCausalLM"),
    llama_like<olmo2>("olmo2", "Olmo2ForCausalLM"),
    llama_like<olmo3>("olmo3", "Olmo3ForCausalLM"),
    llama_like<exaone4>("exaone4", "Exaone4ForCausalLM"),
    llama_like<smollm3>("smollm3", "SmolLM3ForCausalLM"),
    llama_like<internlm2>("internlm2", "InternLM2ForCausalLM"),
    // transformers 5 writes Llama's architecture, whose class it takes.
    llama_like<internlm3>("internlm3", "InternLM3ForCausalLM", "LlamaForCausalLM"),
    llama_like<seed_oss>("seed_oss", "SeedOssForCausalLM"),
    llama_like<phi3>("phi3", "Phi3ForCausalLM"),
    llama_like<hunyuan>("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"),
    llama_like<ernie>("ernie4_5", "Ernie4_5ForCausalLM"),
    llama_like<helium>("helium", "HeliumForCausalLM"),
    llama_like<glm>("glm", "GlmForCausalLM"),
    llama_like<glm4>("glm4", "Glm4ForCausalLM"),
    llama_like<granite>("granite", "GraniteForCausalLM"),
    llama_like<granite4>("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    llama_like<cohere>("cohere", "CohereForCausalLM"),
    llama_like<cohere2>("cohere2", "Cohere2ForCausalLM"),
    llama_like<arcee>("arcee", "ArceeForCausalLM"),
    llama_like<apertus>("apertus", "ApertusForCausalLM"),
    llama_like<nemotron>("nemotron", "NemotronForCausalLM"),
    llama_like<starcoder2>("starcoder2", "Starcoder2ForCausalLM"),
    llama_like<gemma>("gemma", "GemmaForCausalLM"),
    llama_like<gemma2>("gemma2", "Gemma2ForCausalLM"),
    llama_like<gemma3>("gemma3_text", "Gemma3ForCausalLM"),
    llama_like<mixtral>("mixtral", "MixtralForCausalLM"),
    llama_like<qwen2_moe>("qwen2_moe", "Qwen2MoeForCausalLM"),
    llama_like<qwen3_moe>("qwen3_moe", "Qwen3MoeForCausalLM"),
    llama_like<olmoe>("olmoe", "OlmoeForCausalLM"),
    llama_like<glm4_moe>("glm4_moe", "Glm4MoeForCausalLM"),
    llama_like<dots1>("dots1", "Dots1ForCausalLM"),
    llama_like<ling2>("bailing_moe", "BailingMoeV2ForCausalLM"),
    llama_like<ling2>("bailing_moe_v2", "BailingMoeV2ForCausalLM"),
    llama_like<minimax_m2>("minimax_m2", "MiniMaxM2ForCausalLM"),
    llama_like<gpt_oss>("gpt_oss", "GptOssForCausalLM"),
};

}  // namespace

std::span<const Family> llama_families() {
  return all_families;
}

}  // namespace llamesh::model
