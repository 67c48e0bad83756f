#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "model/description/config_json.hpp"
#include "model/description/family.hpp"

namespace llamesh::model {
namespace {

/// Returns a config.json with the family's required keys, but for those in `more`, and `more`.
std::string config_of(const std::string& family, const std::string& more = "") {
  const auto& f = family_named(family);
  auto json = nlohmann::ordered_json::parse(
      family == "gpt2"
          ? R"({"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "vocab_size": 101})"
          : R"({"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
                "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 101})");
  json["architectures"] = {f.architecture};
  json["model_type"] = f.name;
  const char* const with_head_dim[] = {
      "qwen3",   "gemma",     "gemma2",      "gemma3_text",    "seed_oss",
      "glm",     "glm4",      "ernie4_5",    "minimax_m2",     "ministral3",
      "gpt_oss", "internlm3", "bailing_moe", "bailing_moe_v2", "helium"};
  if (std::ranges::find(with_head_dim, family) != std::end(with_head_dim)) json["head_dim"] = 8;
  if (family == "olmo3" || family == "cohere") json["rope_theta"] = 5e5;
  if (family == "granitemoehybrid")
    json.update({{"shared_intermediate_size", 64},
                 {"num_local_experts", 0},
                 {"position_embedding_type", "rope"},
                 {"layer_types", {"attention", "attention", "attention"}}});
  if (family == "ministral3")
    json["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e6},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 32},
                               {"llama_4_scaling_beta", 0.1}};
  if (family == "gpt_oss")
    json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0},
                            {"beta_fast", 32.0},   {"beta_slow", 1.0},
                            {"truncate", false},   {"original_max_position_embeddings", 4096}};
  const bool latent = f.keys.contains("kv_lora_rank"),
             counts_shared = latent || family == "glm4_moe" || family == "dots1",
             is_ling2 = family.starts_with("bailing");
  if (latent)
    json.update({{"num_key_value_heads", 6},
                 {"q_lora_rank", 16},
                 {"kv_lora_rank", 12},
                 {"qk_nope_head_dim", 8},
                 {"qk_rope_head_dim", 4},
                 {"v_head_dim", 10},
                 {"n_group", 2},
                 {"topk_group", 1},
                 {"first_k_dense_replace", 1}});
  if (f.keys.contains("num_experts")) {
    const bool local = family == "mixtral" || family == "minimax_m2" || family == "gpt_oss";
    const auto* name = counts_shared ? "n_routed_experts"
                       : local       ? "num_local_experts"
                                     : "num_experts";
    json.update({{name, 8}, {"num_experts_per_tok", 2}});
  }
  for (const auto* key : {"moe_intermediate_size", "shared_expert_intermediate_size"})
    if (f.keys.contains(key)) json[key] = 40;
  if (counts_shared) {
    json.erase("shared_expert_intermediate_size");
    json["n_shared_experts"] = 1;
  }
  if (is_ling2) {
    json.erase("shared_expert_intermediate_size");
    json.update({{"num_shared_experts", 1}, {"n_group", 2}, {"topk_group", 1}});
  }
  if (family == "apertus")
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  json.update(nlohmann::ordered_json::parse("{" + more + "}"));
  return json.dump();
}

ModelConfig config(const std::string& family, const std::string& more = "") {
  return parse_config_json(config_of(family, more), "config.json");
}

std::string error_of(const std::string& family, const std::string& more) {
  try {
    config(family, more);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    return error.what();
  }
  return "no error";
}

TEST(Families, ReadTheirKeys) {
  EXPECT_EQ(config("mistral").sliding_window, 4096);  // transformers' default
  EXPECT_EQ(config("mistral", R"("sliding_window": null)").sliding_window, 0);
  EXPECT_EQ(config("mistral", R"("sliding_window": 24)").window(0), 24);
  EXPECT_EQ(config("qwen2", R"("sliding_window": 24)").sliding_window, 0);  // it is not in use
  const auto windowed = config("qwen2", R"("use_sliding_window": true, "sliding_window": 24,
      "max_window_layers": 2, "layer_types": ["full_attention", "full_attention",
      "sliding_attention"])");
  EXPECT_EQ(windowed.window(1), 0);
  EXPECT_EQ(windowed.window(2), 24);
  for (const auto* family : {"qwen2", "qwen3"}) {
    const auto without = config(
        family, R"("use_sliding_window": true, "sliding_window": null, "max_window_layers": 2)");
    EXPECT_EQ(without.sliding_window, 0) << family;
    EXPECT_EQ(without.max_window_layers, 0) << family;
  }
  EXPECT_EQ(config("qwen3", R"("head_dim": 10)").head_dim, 10);
  const auto mimo = config("mimo", R"("attention_bias": true, "num_nextn_predict_layers": 1,
      "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 36)");
  EXPECT_FALSE(mimo.attention_bias);  // biases on q, k and v are the family's own
  EXPECT_EQ(mimo.sliding_window, 0);
  const auto mixtral = config("mixtral");
  EXPECT_EQ(mixtral.sliding_window, 0);
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_TRUE(mixtral.norm_topk_prob);
  EXPECT_FALSE(config("qwen3_moe").norm_topk_prob);
  EXPECT_EQ(config("qwen3_moe", R"("num_experts": null, "num_local_experts": 5)").num_experts, 5);
  EXPECT_FALSE(config("mixtral").output_router_logits);
  EXPECT_EQ(config("mixtral").router_aux_loss_coef, 0.001);
  const auto balanced =
      config("qwen3_moe", R"("output_router_logits": true, "router_aux_loss_coef": 0)");
  EXPECT_TRUE(balanced.output_router_logits);
  EXPECT_EQ(balanced.router_aux_loss_coef, 0);
  const auto gemma3 = config("gemma3_text", R"("sliding_window_pattern": 2)");
  EXPECT_EQ(gemma3.window(0), 4096);
  EXPECT_EQ(gemma3.window(1), 0);
  EXPECT_EQ(gemma3.query_pre_attn_scalar, 256);
  EXPECT_TRUE(gemma3.tie_word_embeddings);
  const auto olmo3 = config("olmo3", R"("num_hidden_layers": 4)");
  EXPECT_EQ(olmo3.window(2), 4096);
  EXPECT_EQ(olmo3.window(3), 0);
  const auto smollm3 = config("smollm3", R"("no_rope_layer_interval": 2)");
  EXPECT_TRUE(smollm3.rotates(0));
  EXPECT_FALSE(smollm3.rotates(1));
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_EQ(config("exaone4", R"("sliding_window": null)").window(0), 0);
  EXPECT_EQ(config("ministral").window(2), 4096);
  const auto internlm2 = config("internlm2", R"("bias": false, "rope_theta": 1000000,
      "max_position_embeddings": 32768, "rope_scaling": {"type": "dynamic", "factor": 2.0})");
  EXPECT_FALSE(internlm2.attention_bias);
  EXPECT_EQ(internlm2.rope_scaling->factor, 2);
  EXPECT_TRUE(config("internlm2").attention_bias);
  const auto internlm3 = config("internlm3", R"("qkv_bias": true, "bias": true,
      "rope_theta": 50000000, "max_position_embeddings": 32768,
      "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"})");
  EXPECT_TRUE(internlm3.attention_bias && internlm3.mlp_bias);
  EXPECT_EQ(internlm3.rope_scaling->rope_type, RopeType::dynamic);
  EXPECT_EQ(internlm3.rope_scaling->original_max_position_embeddings, 32768);
  // As transformers 5 writes it.
  const auto by_transformers = config("internlm3", R"("architectures": ["LlamaForCausalLM"],
      "attention_bias": true, "mlp_bias": true)");
  EXPECT_EQ(by_transformers.family, "internlm3");
  EXPECT_TRUE(by_transformers.attention_bias && by_transformers.mlp_bias);
  EXPECT_EQ(config("seed_oss").dropout, 0.1);
  EXPECT_TRUE(config("seed_oss").attention_bias);
  EXPECT_NEAR(config("hunyuan_v1_dense", R"("head_dim": 128, "rope_theta": 1e4,
      "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0})")
                  .rope_theta,
              1e4 * 1115.88, 100);  // 1000^(128 / 126)
  EXPECT_EQ(config("helium").rms_norm_eps, 1e-8);
  EXPECT_EQ(config("glm4").partial_rotary_factor, 0.5);
  EXPECT_TRUE(config("glm4").attention_bias);
  EXPECT_EQ(config("granite").attention_multiplier, 1);
  EXPECT_EQ(config("nemotron", R"("norm_eps": 0.5)").layer_norm_epsilon, 0.5);
  EXPECT_TRUE(config("starcoder2").mlp_bias);
  EXPECT_TRUE(config("ernie4_5", R"("use_bias": true)").mlp_bias);
  const auto apertus = config("apertus");
  EXPECT_EQ(apertus.rope_theta, 1.2e7);
  EXPECT_EQ(apertus.rope_scaling->factor, 8);
  const auto qwen2_moe = config("qwen2_moe");
  EXPECT_TRUE(qwen2_moe.attention_bias);
  EXPECT_FALSE(qwen2_moe.attention_out_bias || qwen2_moe.mlp_bias || qwen2_moe.norm_topk_prob);
  EXPECT_EQ(qwen2_moe.shared_expert_intermediate_size, 40);
  EXPECT_FALSE(config("qwen2_moe", R"("qkv_bias": false)").attention_bias);
  EXPECT_EQ(config("olmoe").router_aux_loss_coef, 0.01);
  const auto glm = config("glm4_moe", R"("n_shared_experts": 2, "num_nextn_predict_layers": 1,
      "use_qk_norm": true, "n_group": 4, "topk_group": 3, "routed_scaling_factor": 2.5)");
  EXPECT_EQ(glm.shared_expert_intermediate_size, 80);
  EXPECT_EQ(glm.partial_rotary_factor, 0.5);
  EXPECT_FALSE(glm.has_experts(0));
  EXPECT_TRUE(glm.has_experts(1));
  EXPECT_EQ(config("glm4_moe", R"("first_k_dense_replace": 0)").first_k_dense_replace, 0);
  EXPECT_EQ(config("glm4_moe", R"("n_shared_experts": 0)").shared_expert_intermediate_size, 0);
  const auto dots = config("dots1", R"("attention_bias": true, "sliding_window": null,
      "max_window_layers": 2, "scoring_func": "noaux_tc", "moe_layer_freq": 1)");
  EXPECT_TRUE(dots.attention_bias && !dots.norm_topk_prob);
  EXPECT_TRUE(dots.has_experts(0));
  EXPECT_EQ(dots.rotary_dims(), 8);
  EXPECT_EQ(dots.sliding_window, 0);
  const auto deepseek = config("deepseek_v3", R"("first_k_dense_replace": null, "n_group": null,
      "num_hidden_layers": 4, "topk_group": null, "routed_scaling_factor": null, "rope_scaling":
      {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0,
      "mscale_all_dim": 1.0}, "head_dim": 4, "qk_head_dim": 12, "ep_size": 1)");
  EXPECT_EQ(deepseek.head_dim, 12);
  EXPECT_EQ(deepseek.rotary_dims(), 4);
  EXPECT_EQ(deepseek.value_dim(), 10);
  EXPECT_EQ(deepseek.first_k_dense_replace, 3);
  EXPECT_EQ(deepseek.n_group, 8);
  EXPECT_EQ(deepseek.topk_group, 4);
  EXPECT_EQ(deepseek.routed_scaling_factor, 2.5);
  EXPECT_EQ(deepseek.rope_scaling->attention_factor, 1);
  EXPECT_EQ(config("deepseek_v3", R"("q_lora_rank": null)").q_lora_rank, 0);
  const auto lite = config("glm4_moe_lite", R"("mlp_layer_types": ["sparse", "dense", "sparse"])");
  EXPECT_EQ(lite.mlp_only_layers, std::vector<std::int64_t>{1});
  EXPECT_EQ(config("glm4_moe_lite").mlp_only_layers, std::vector<std::int64_t>{0});
  const auto ling2 = config("bailing_moe", R"("num_shared_experts": 2, "n_group": null,
      "topk_group": null, "num_experts": 16, "routed_scaling_factor": 2.5, "use_qkv_bias": false,
      "use_bias": true, "partial_rotary_factor": 0.5, "use_rmsnorm": true, "router_dtype": "fp32",
      "score_function": "sigmoid", "moe_router_enable_expert_bias": true, "norm_topk_prob": true,
      "moe_shared_expert_intermediate_size": 40, "embedding_dropout": 0.0, "max_window_layers": 20,
      "num_nextn_predict_layers": 1, "mtp_loss_scaling_factor": 0.1, "rope_scaling": null)");
  EXPECT_EQ(ling2.shared_expert_intermediate_size, 80);
  EXPECT_TRUE(ling2.attention_out_bias && ling2.use_qk_norm && !ling2.attention_bias);
  EXPECT_EQ(ling2.rotary_dims(), 4);
  EXPECT_EQ(ling2.n_group, 8);
  EXPECT_EQ(ling2.topk_group, 4);
  EXPECT_EQ(ling2.rope_theta, 6e5);
  EXPECT_FALSE(ling2.has_experts(0));
  EXPECT_EQ(config("bailing_moe_v2").family, "bailing_moe_v2");
  const auto minimax = config("minimax_m2", R"("rotary_dim": 4, "scoring_func": "sigmoid")");
  EXPECT_EQ(minimax.rotary_dims(), 4);
  EXPECT_EQ(minimax.rope_theta, 5e6);
  const auto gemma2 = config("gemma2");
  EXPECT_EQ(gemma2.window(0), 4096);
  EXPECT_EQ(gemma2.window(1), 0);
  EXPECT_EQ(gemma2.attn_logit_softcapping, 50);
  EXPECT_EQ(gemma2.final_logit_softcapping, 30);
  EXPECT_EQ(config("gemma2", R"("attn_logit_softcapping": null)").attn_logit_softcapping, 0);
  EXPECT_EQ(config("granitemoehybrid").intermediate_size, 64);
  EXPECT_EQ(config("cohere").logits_scaling, 16);
  EXPECT_EQ(config("cohere", R"("logit_scale": 0.25)").logits_scaling, 4);
  EXPECT_TRUE(config("cohere").tie_word_embeddings);
  const auto cohere2 = config("cohere2", R"("num_hidden_layers": 4, "layer_norm_eps": 0.5)");
  EXPECT_EQ(cohere2.window(2), 4096);
  EXPECT_EQ(cohere2.window(3), 0);
  EXPECT_EQ(cohere2.layer_norm_epsilon, 0.5);
  const auto ministral3 = config("ministral3");
  EXPECT_EQ(ministral3.rope_theta, 1e6);
  EXPECT_EQ(ministral3.rope_scaling->llama_4_scaling_beta, 0.1);
  const auto phi3 = config("phi3", R"("max_position_embeddings": 128, "partial_rotary_factor": 0.5,
      "original_max_position_embeddings": 32, "rope_scaling": {"type": "su",
      "short_factor": [1, 2], "long_factor": [3, 4]})");
  EXPECT_EQ(phi3.rope_scaling->rope_type, RopeType::longrope);
  EXPECT_EQ(phi3.rope_scaling->factor, 4);
  EXPECT_EQ(phi3.rope_scaling->long_factor, (std::vector{3.0, 4.0}));
  const auto factor = [](const char* more) {
    return config("llama", fmt::format(R"("max_position_embeddings": 128,
        "rope_scaling": {{"rope_type": "yarn", "factor": 20.0, {}}})",
                                       more))
        .rope_scaling->attention_factor;
  };
  EXPECT_EQ(factor(R"("mscale": 1.0)"), 0);  // transformers wants both
  EXPECT_DOUBLE_EQ(factor(R"("mscale": 2.0, "mscale_all_dim": 1.0)"),
                   (0.2 * std::log(20.0) + 1) / (0.1 * std::log(20.0) + 1));
  const auto gpt2 = config("gpt2", R"("resid_pdrop": 0.0, "embd_pdrop": 0.0)");
  EXPECT_EQ(gpt2.intermediate_size, 192);
  EXPECT_TRUE(gpt2.tie_word_embeddings);
  EXPECT_EQ(gpt2.dropout, 0.1);  // attn_pdrop's default
}

/// Keys of well-known folders on the hub that mean nothing: gpt2-medium, gpt2-xl, distilgpt2,
/// SmolLM2, Qwen2.5, Vicuna.
TEST(Families, ReadFoldersOfTheHub) {
  config("gpt2", R"("n_ctx": 1024, "n_special": 0, "predict_special_tokens": true,
      "output_past": true, "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "summary_type": "cls_index",
      "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}})");
  config("llama", R"("is_llama_config": true, "rope_interleaved": false, "pretraining_tp": 1,
      "transformers.js_config": {"dtype": "q4"}, "max_sequence_length": 2048, "rope_scaling": null,
      "pad_token_id": 2, "use_cache": true, "torch_dtype": "bfloat16", "unsloth_fixed": true)");
  config("gemma3_text", R"("_sliding_window_pattern": 6, "cache_implementation": "hybrid",
      "attn_logit_softcapping": null, "final_logit_softcapping": null,
      "use_bidirectional_attention": false, "max_position_embeddings": 32768,
      "eos_token_id": [1, 106])");
  config("phi3", R"("attention_bias": false, "full_attn_mod": 1, "interpolate_factor": 1,
      "lm_head_bias": false, "mlp_bias": false, "sliding_window": 262144)");
  config("cohere2", R"("cache_implementation": "hybrid", "head_dim": 8, "layer_switch": 4,
      "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
      "rotary_pct": 1.0, "sliding_window_pattern": 4, "use_embedding_sharing": true,
      "use_gated_activation": true, "use_parallel_block": true, "use_parallel_embedding": true)");
  config("qwen2", R"("use_mrope": false, "use_sliding_window": false, "sliding_window": 131072,
      "max_window_layers": 28, "max_position_embeddings": 32768)");
}

TEST(Families, WriteWhatTheyRead) {
  const std::pair<const char*, const char*> models[] = {
      {"llama", R"("rope_scaling": {"rope_type": "linear", "factor": 4})"},
      {"llama", R"("rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 16,
                   "truncate": false}, "max_position_embeddings": 128)"},
      {"mistral", R"("sliding_window": 24)"},
      {"mistral", R"("sliding_window": null)"},
      {"qwen2", R"("use_sliding_window": true, "sliding_window": 24, "max_window_layers": 1)"},
      {"mimo", R"("head_dim": 10, "num_nextn_predict_layers": 1)"},
      {"qwen3", R"("head_dim": 10, "attention_bias": true)"},
      {"olmo2", ""},
      {"gemma3_text", ""},
      {"olmo3", R"("sliding_window": 24, "attention_bias": true, "rope_scaling":
                   {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 64})"},
      {"olmo3", R"("rope_theta": 7e5, "rope_parameters": {
                   "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7e5},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 7e5}})"},
      {"exaone4", R"("sliding_window_pattern": "LLG", "layer_types":
                     ["sliding_attention", "sliding_attention", "full_attention"])"},
      {"exaone4", R"("sliding_window": null)"},
      {"smollm3", R"("no_rope_layers": [0, 1, 0], "mlp_bias": true)"},
      {"ministral", ""},
      {"internlm2", R"("max_position_embeddings": 8,
                       "rope_scaling": {"type": "dynamic", "factor": 1.0})"},
      {"internlm2", R"("bias": false, "rope_scaling": {"type": "linear", "factor": 2.0})"},
      {"internlm3", R"("qkv_bias": true, "bias": true, "attention_bias": true,
                       "max_position_embeddings": 8,
                       "rope_parameters": {"rope_type": "dynamic", "factor": 2.5})"},
      {"seed_oss", R"("attention_out_bias": true, "residual_dropout": 0.0)"},
      {"phi3", R"("sliding_window": 2047, "resid_pdrop": 0.1, "partial_rotary_factor": 1.0)"},
      {"phi3", R"("max_position_embeddings": 128, "original_max_position_embeddings": 32,
                  "rope_parameters": {"rope_type": "longrope", "attention_factor": 1.5,
                  "short_factor": [1, 1, 1.5, 2], "long_factor": [1, 2, 3, 4]})"},
      {"ministral3", ""},
      {"granitemoehybrid", R"("logits_scaling": 3.0, "tie_word_embeddings": true)"},
      {"cohere", R"("logit_scale": 0.3, "layer_norm_eps": 1e-3)"},
      {"cohere2", R"("sliding_window": 24, "layer_types":
                     ["sliding_attention", "full_attention", "sliding_attention"])"},
      {"gemma2", R"("attn_logit_softcapping": null, "final_logit_softcapping": 20.0)"},
      {"hunyuan_v1_dense", R"("rope_scaling": {"type": "dynamic", "alpha": 10.0})"},
      {"gemma3_text", R"("sliding_window": 24, "query_pre_attn_scalar": 6, "rope_theta": 5e5,
                         "rope_local_base_freq": 500, "attention_bias": true,
                         "rope_scaling": {"rope_type": "linear", "factor": 8})"},
      {"ernie4_5", R"("use_bias": true)"},
      {"helium", R"("attention_bias": true)"},
      {"dots1", R"("n_shared_experts": 3, "norm_topk_prob": true, "attention_bias": true,
          "sliding_window": 4096, "max_window_layers": 3)"},
      {"glm", ""},
      {"glm4", R"("partial_rotary_factor": 0.25, "attention_bias": false)"},
      {"glm4", R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75})"},
      {"granite", R"("attention_multiplier": 0.5, "embedding_multiplier": 12,
                     "residual_multiplier": 0.22, "logits_scaling": 16.0)"},
      {"arcee", R"("rope_scaling": {"rope_type": "yarn", "factor": 4, "mscale": 1.0,
                   "mscale_all_dim": 0.5}, "max_position_embeddings": 128)"},
      {"gemma", R"("hidden_act": "gelu", "hidden_activation": null)"},
      {"nemotron", R"("norm_eps": 1e-6, "partial_rotary_factor": 0.25)"},
      {"starcoder2", R"("norm_epsilon": 1e-6, "use_bias": false, "sliding_window": 24,
                        "embedding_dropout": 0.1)"},
      {"mixtral", R"("num_local_experts": 3, "sliding_window": 24)"},
      {"mixtral", R"("output_router_logits": true, "router_aux_loss_coef": 0.02)"},
      {"mixtral", R"("router_aux_loss_coef": 0)"},
      {"qwen3_moe", R"("num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
                       "norm_topk_prob": true)"},
      {"qwen3_moe", R"("decoder_sparse_step": 2)"},
      {"qwen3_moe", R"("mlp_only_layers": [0, 2])"},
      {"qwen2_moe", R"("shared_expert_intermediate_size": 24, "qkv_bias": false)"},
      {"olmoe", R"("norm_topk_prob": true, "attention_bias": true)"},
      {"glm4_moe", R"("n_shared_experts": 3, "use_qk_norm": true, "first_k_dense_replace": 2,
                      "n_group": 2, "topk_group": 1, "routed_scaling_factor": 0.5,
                      "norm_topk_prob": false, "attention_bias": true)"},
      {"glm4_moe", R"("n_shared_experts": 0)"},
      {"bailing_moe", R"("use_qkv_bias": true, "use_bias": true, "partial_rotary_factor": 0.5)"},
      {"bailing_moe", R"("use_qk_norm": false, "num_shared_experts": 0)"},
      {"bailing_moe_v2", R"("first_k_dense_replace": 0, "num_nextn_predict_layers": 1)"},
      {"minimax_m2", R"("rotary_dim": 4)"},
      {"deepseek_v3", R"("attention_bias": true, "rope_scaling": {"type": "yarn", "factor": 40,
                         "original_max_position_embeddings": 64, "mscale": 0.7,
                         "mscale_all_dim": 0.9})"},
      {"deepseek_v3", R"("q_lora_rank": null, "norm_topk_prob": false)"},
      {"deepseek_v2", R"("topk_method": "group_limited_greedy", "topk_group": 2)"},
      {"deepseek_v2", R"("scoring_func": "softmax", "routed_scaling_factor": 16.0)"},
      {"kimi_k2",
       R"("num_nextn_predict_layers": 0, "moe_layer_freq": 1, "seq_aux": true, "aux_loss_alpha": 0.001)"},
      {"glm4_moe_lite", R"("mlp_layer_types": ["sparse", "dense", "sparse"])"},
      {"gpt_oss", R"("sliding_window": 24, "attention_bias": false, "output_router_logits": true,
                     "router_aux_loss_coef": 0.9, "swiglu_limit": 7.0, "initial_context_length": 4096,
                     "experts_per_token": 2, "quantization_config": {"quant_method": "mxfp4"})"},
      {"apertus", R"("rope_scaling": {"rope_type": "default"}, "attention_bias": true)"},
      {"gpt2", R"("n_inner": 99, "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0)"}};
  for (const auto& [family, more] : models) {
    const auto c = config(family, more);
    EXPECT_EQ(c.family, family);
    EXPECT_EQ(to_config_json(parse_config_json(to_config_json(c), "again")), to_config_json(c))
        << family << more;
    EXPECT_GT(parameter_table(c).numel(), 0);
  }
}

/// An export keeps a folder's three dropouts, unless the run was told to train without.
TEST(Gpt2, DropoutsOfTheSourceAreKept) {
  const auto source = config_of("gpt2", R"("resid_pdrop": 0.25, "embd_pdrop": 0, "attn_pdrop": 0)");
  auto c = parse_config_json(source, "config.json");
  EXPECT_EQ(c.dropout, 0.25);
  EXPECT_NE(to_config_json(c, "", source).find(R"("attn_pdrop": 0,)"), std::string::npos);
  c.dropout = 0;
  const auto written = to_config_json(c, "", source);
  EXPECT_EQ(parse_config_json(written, "again").dropout, 0) << written;
}

TEST(Families, NameWhatTheyDoNotCompute) {
  const std::tuple<const char*, const char*, const char*> table[] = {
      {"mistral", R"("sliding_window": 0)", "sliding_window is 0; allowed: 1 to"},
      {"mistral", R"("hidden_act": "gelu")", "hidden_act is 'gelu'"},
      {"qwen2", R"("use_sliding_window": 1)", "use_sliding_window: expected true or false"},
      {"qwen2", R"("use_sliding_window": true, "max_window_layers": -1)",
       "max_window_layers is -1; allowed: 0 to"},
      {"qwen2", R"("layer_types": ["full_attention", "sliding_attention", "full_attention"])",
       "layer_types is [\"full_attention\",\"sliding_attention\""},
      {"qwen3", R"("attention_dropout": 0.5)", "attention_dropout is 0.5"},
      {"gemma3_text", R"("hidden_activation": "silu")", "llamesh computes gelu_pytorch_tanh"},
      {"gemma3_text", R"("final_logit_softcapping": 30.0)",
       "final_logit_softcapping is 30.0, and llamesh does not know this key"},
      {"gemma3_text", R"("layer_types": ["full_attention"])",
       "layer_types has 1 types, but num_hidden_layers is 3"},
      {"gemma3_text", R"("layer_types": ["full_attention", "chunked_attention", "full_attention"])",
       "model.layer_types has 'chunked_attention'; known: sliding_attention, full_attention"},
      {"gemma3_text", R"("layer_types": 3)", "layer_types: expected a list of strings, got 3"},
      {"gemma3_text", R"("rope_parameters": {"full_attention": {"rope_type": "default"},
          "sliding_attention": {"rope_type": "linear", "factor": 2.0}})",
       "sliding_attention is scaled"},
      {"gemma3_text", R"("rope_scaling": {"rope_type": "linear", "factor": 2.0},
          "rope_parameters": {"full_attention": {"rope_type": "default"}})",
       "both rope_scaling and rope_parameters are set"},
      {"gemma3_text", R"("rope_scaling": {"type": "linear", "factor": 2.0})", "name it rope_type"},
      {"olmo3", R"("rope_theta": null)", "rope_theta is missing"},
      {"olmo3", R"("rope_theta": 1e4)",
       "rope_theta is 10000 for full_attention and 500000 for sliding_attention"},
      {"exaone4", R"("sliding_window": null, "layer_types":
          ["sliding_attention", "full_attention", "full_attention"])",
       "model.layer_types has sliding_attention, but there is no window"},
      {"smollm3", R"("no_rope_layers": [1, 1])",
       "no_rope_layers has 2 layers, but num_hidden_layers is 3"},
      {"smollm3", R"("no_rope_layers": [1, 2, 1])", "model.no_rope_layers has 2"},
      {"smollm3", R"("use_sliding_window": true)", "use_sliding_window is true"},
      {"mimo", R"("attention_bias": false)", "attention_bias is false; llamesh computes true only"},
      {"internlm2", R"("head_dim": 10)",
       "model.head_dim is 10; in the family internlm2 it is hidden_size / num_attention_heads"},
      {"internlm3", R"("qkv_bias": true)",
       "qkv_bias is true, but bias is missing; llamesh computes the family with both or none"},
      {"internlm3", R"("qkv_bias": true, "bias": true, "attention_bias": false)",
       "qkv_bias is true, but attention_bias, the same key, is false"},
      {"internlm3", R"("rope_scaling": {"type": "dynamic", "factor": 2.0})",
       "max_position_embeddings is missing"},
      {"internlm3", R"("max_position_embeddings": 64, "original_max_position_embeddings": 32,
          "rope_scaling": {"type": "dynamic", "factor": 2.0})",
       "original_max_position_embeddings differs from max_position_embeddings 64"},
      {"internlm3", R"("max_position_embeddings": 64,
          "rope_scaling": {"type": "dynamic", "factor": 0.5})",
       "factor is 0.5 for 8 rotated dims; dynamic needs 1 or more"},
      {"internlm3", R"("architectures": ["LlamaForCausalLM"], "model_type": "mistral")",
       "architectures is [\"LlamaForCausalLM\"] and model_type \"mistral\"; llamesh trains"},
      {"internlm3", R"("architectures": [""])", "architectures is [\"\"]"},
      {"phi3", R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})",
       "rope_scaling: rope_type is 'linear'; the family has default and longrope"},
      {"phi3", R"("rope_scaling": {"type": "longrope"})",
       "original_max_position_embeddings is missing"},
      {"phi3", R"("max_position_embeddings": 128, "original_max_position_embeddings": 32,
          "rope_scaling": {"type": "longrope", "short_factor": [1]})",
       "model.rope_scaling.short_factor has 1 numbers, but 8 dims of a head rotate; it needs 4"},
      {"phi3", R"("max_position_embeddings": 128, "original_max_position_embeddings": 32,
          "rope_scaling": {"type": "longrope", "factor": 2.0})",
       "factor is 2.0, but max_position_embeddings 128 / original_max_position_embeddings 32 is 4"},
      {"phi3", R"("max_position_embeddings": 128, "original_max_position_embeddings": 32,
          "rope_scaling": {"type": "longrope", "short_factor": [1, -1]})",
       "short_factor: expected a list of numbers above 0, got [1,-1]"},
      {"llama", R"("rope_scaling": {"type": "longrope"})", "rope_type is 'longrope'"},
      {"ministral3", R"("rope_parameters": {"rope_type": "yarn", "factor": 2.0,
          "original_max_position_embeddings": 32})",
       "llama_4_scaling_beta is missing"},
      {"ministral3", R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e6})",
       "model.rope_scaling is null; the family ministral3 needs one of rope_type yarn"},
      {"granitemoehybrid", R"("num_local_experts": 8)",
       "num_local_experts is 8; llamesh computes 0"},
      {"granitemoehybrid", R"("position_embedding_type": "nope")",
       "position_embedding_type is \"nope\"; llamesh computes rope only"},
      {"granitemoehybrid", R"("layer_types": ["mamba", "attention", "attention"])",
       "llamesh computes full_attention in each layer only"},
      {"cohere", R"("rope_theta": null)", "rope_theta is missing"},
      {"cohere", R"("use_qk_norm": true)", "use_qk_norm is true; llamesh computes the family"},
      {"cohere2", R"("head_dim": 10)",
       "model.head_dim is 10; in the family cohere2 it is hidden_size / num_attention_heads, 48 / "
       "6"},
      {"gemma2", R"("final_logit_softcapping": -1.0)",
       "final_logit_softcapping: expected a number above 0"},
      {"llama", R"("rope_scaling": {"type": "dynamic", "alpha": 10.0})", "rope_type is 'dynamic'"},
      {"mixtral", R"("num_local_experts": 4, "num_experts_per_tok": 5)",
       "model.num_experts_per_tok is 5, but num_experts is 4"},
      {"mixtral", R"("output_router_logits": 1)", "output_router_logits: expected true or false"},
      {"mixtral", R"("num_local_experts": null)", "num_local_experts is missing"},
      {"mixtral", R"("num_experts": 4)",
       "num_local_experts is 8, but num_experts, the same key, is 4"},
      {"mixtral", R"("num_experts_per_tok": null)", "num_experts_per_tok is missing"},
      {"qwen3_moe", R"("num_experts": null)", "num_experts is missing"},
      {"qwen3_moe", R"("moe_intermediate_size": null)", "moe_intermediate_size is missing"},
      {"llama", R"("is_causal": false)", "is_causal is set, but not to true"},
      {"llama", R"("quantization_config": {"quant_method": "awq"})",
       "quantization_config: quant_method is \"awq\"; llamesh reads weights in fp8 and mxfp4, and"},
      {"gpt_oss", R"("swiglu_limit": 6.0)", "swiglu_limit is 6.0; llamesh computes 7 only"},
      {"gpt_oss", R"("swiglu_alpha": 1.5)", "swiglu_alpha is 1.5; llamesh computes 1.702 only"},
      {"gpt_oss", R"("rope_scaling": null)", "rope_scaling and rope_parameters are missing"},
      {"gpt2", R"("num_attention_heads": 3)",
       "n_head is 6, but num_attention_heads, the same key, is 3"},
      {"llama", R"("attention_multiplier": 0.5)",
       "attention_multiplier is 0.5, and llamesh does not know this key"},
      {"qwen2", R"("attention_bias": true)", "attention_bias is true, and llamesh does not know"},
      {"mistral", R"("rope_parameters": {"rope_type": "default", "mrope_section": [8, 8]})",
       "rope_parameters: mrope_section is [8,8], and llamesh does not know this key"},
      {"mixtral", R"("router_aux_loss_coef": -0.5)",
       "router_aux_loss_coef: expected a number above 0"},
      {"mixtral", R"("router_jitter_noise": 0.1)",
       "router_jitter_noise is 0.1; llamesh computes 0.0 only"},
      {"qwen3_moe", R"("decoder_sparse_step": 0)", "decoder_sparse_step is 0; allowed: 1 to"},
      {"qwen3_moe", R"("decoder_sparse_step": 4)",
       "by model.decoder_sparse_step 4, mlp_only_layers and first_k_dense_replace 0 none of the 3 "
       "layers has experts"},
      {"qwen3_moe", R"("mlp_only_layers": [0, 3])",
       "model.mlp_only_layers has layer 3; the model has layers 0 to 2"},
      {"qwen3_moe", R"("mlp_only_layers": 1)",
       "mlp_only_layers: expected a list of integers, got 1"},
      {"qwen3_moe", R"("use_sliding_window": true)",
       "use_sliding_window is true; llamesh computes false only"},
      {"olmo2", R"("rope_scaling": {"rope_type": "yarn"}, "max_position_embeddings": 64)",
       "factor is missing"},
      {"llama", R"("rope_scaling": {"rope_type": "yarn", "factor": 4})",
       "max_position_embeddings is missing"},
      {"apertus", R"("rope_scaling": null)", "rope_scaling and rope_parameters are missing"},
      {"apertus", R"("hidden_act": "silu")", "llamesh computes xielu"},
      {"qwen2_moe", R"("shared_expert_intermediate_size": null)",
       "shared_expert_intermediate_size is missing"},
      {"qwen2_moe", R"("use_sliding_window": true)", "llamesh computes false only"},
      {"glm4_moe", R"("n_group": 3)", "model.n_group is 3 and topk_group 1, but num_experts is 8"},
      {"glm4_moe", R"("n_group": 2, "topk_group": 3)", "model.n_group is 2 and topk_group 3"},
      {"glm4_moe", R"("n_group": 8)",
       "model.num_experts_per_tok is 2, but 1 of 8 groups have 1 experts"},
      {"glm4_moe", R"("n_group": 0)", "n_group is 0"},
      {"glm4_moe", R"("first_k_dense_replace": 3)",
       "first_k_dense_replace 3 none of the 3 layers has experts"},
      {"glm4_moe", R"("n_shared_experts": null)", "n_shared_experts is missing"},
      {"glm4_moe", R"("scoring_func": "softmax")",
       "scoring_func is \"softmax\"; llamesh computes \"sigmoid\" only"},
      {"glm4_moe", R"("output_router_logits": true)",
       "output_router_logits is true, and llamesh does not know this key"},
      {"deepseek_v3", R"("kv_lora_rank": null)", "kv_lora_rank is missing"},
      {"deepseek_v3", R"("num_key_value_heads": 2)",
       "model.num_key_value_heads is 2 and num_attention_heads 6; with latent attention they are"},
      {"deepseek_v3", R"("qk_nope_head_dim": 7)", "model.qk_nope_head_dim is 7; it must be even"},
      {"deepseek_v3", R"("qk_rope_head_dim": 3, "qk_nope_head_dim": 8)",
       "model.head_dim is 11; rotary embedding needs an even number"},
      {"deepseek_v3", R"("head_dim": 12)", "head_dim is 12, but qk_rope_head_dim 4"},
      {"deepseek_v3", R"("qk_head_dim": 4)", "qk_head_dim is 4, but qk_nope_head_dim 8"},
      {"deepseek_v3", R"("moe_layer_freq": 2)", "llamesh computes 1 only"},
      {"deepseek_v3", R"("norm_topk_prob": null)", "norm_topk_prob is null; set it to true or"},
      {"deepseek_v3", R"("rope_interleave": false)", "llamesh computes true only"},
      {"deepseek_v3", R"("scoring_func": "softmax")", "llamesh computes \"sigmoid\" only"},
      {"deepseek_v2", R"("norm_topk_prob": true)",
       "norm_topk_prob is true; llamesh computes the family without it"},
      {"deepseek_v2", R"("topk_method": "noaux_tc")",
       "topk_method is 'noaux_tc'; llamesh computes greedy and group_limited_greedy"},
      {"deepseek_v2", R"("topk_method": "group_limited_greedy", "n_group": null)",
       "n_group is missing"},
      {"deepseek_v2", R"("scoring_func": "sigmoid")", "llamesh computes \"softmax\" only"},
      {"glm4_moe_lite", R"("mlp_layer_types": ["sparse", "dense"])",
       "mlp_layer_types is [\"sparse\",\"dense\"]; llamesh computes 'dense' and 'sparse', for"},
      {"glm4_moe_lite", R"("first_k_dense_replace": 2)", "transformers reads mlp_layer_types"},
      {"bailing_moe", R"("score_function": "softmax")", "score_function is 'softmax'"},
      {"bailing_moe", R"("router_dtype": "bf16")", "router_dtype is 'bf16'; llamesh computes fp32"},
      {"bailing_moe", R"("norm_topk_prob": false)", "norm_topk_prob is false; llamesh computes"},
      {"bailing_moe", R"("use_rmsnorm": false)",
       "use_rmsnorm is false; llamesh computes true only"},
      {"bailing_moe", R"("moe_shared_expert_intermediate_size": 80)",
       "moe_shared_expert_intermediate_size is 80, but moe_intermediate_size 40"},
      {"bailing_moe", R"("num_experts_per_tok": 1)", "num_experts_per_tok is 1; the family's code"},
      {"bailing_moe", R"("norm_head": true)", "norm_head is true, and llamesh does not know this"},
      {"bailing_moe", R"("architectures": ["BailingMoeForCausalLM"])",
       "architectures is [\"BailingMoeForCausalLM\"] and model_type \"bailing_moe\""},
      {"minimax_m2", R"("rotary_dim": 3)", "rotates 3 dims of head_dim 8"},
      {"olmoe", R"("clip_qkv": 8.0)", "clip_qkv is 8.0; llamesh computes null only"},
      {"dots1", R"("max_window_layers": 2)",
       "config.json: layers from max_window_layers 2 on have sliding_window missing; llamesh "
       "computes the family dots1 without windows"},
      {"dots1", R"("moe_layer_freq": 2)", "moe_layer_freq is 2"},
      {"helium", R"("head_dim": 10)", "model.head_dim is 10; in the family helium it is"},
      {"glm4", R"("head_dim": 10)", "rotates 5 dims of head_dim 10"},
      {"gemma", R"("hidden_activation": "relu")", "hidden_activation is 'relu'"},
      {"arcee", R"("hidden_act": "silu")", "llamesh computes relu2"},
      {"granite", R"("attention_multiplier": 0)", "attention_multiplier is 0; it must be above 0"},
      {"granite", R"("residual_multiplier": 0)", "residual_multiplier"},
      {"llama", R"("partial_rotary_factor": 0.5)", "partial_rotary_factor is 0.5"},
      {"gpt2", R"("activation_function": "gelu")", "activation_function is 'gelu'"},
      {"gpt2", R"("scale_attn_weights": false)", "scale_attn_weights is false"},
      {"gpt2", R"("scale_attn_by_inverse_layer_idx": true)",
       "scale_attn_by_inverse_layer_idx is true"},
      {"gpt2", R"("add_cross_attention": true)", "add_cross_attention is true"},
  };
  for (const auto& [family, more, message] : table)
    EXPECT_NE(error_of(family, more).find(message), std::string::npos)
        << family << ' ' << more << ": " << error_of(family, more);
}

/// Keys in an input file that a family does not have are refused, not ignored.
TEST(Families, RefuseOthersKeys) {
  const auto error = [](const std::string& family, auto change) {
    auto c = config(family);
    change(c);
    try {
      c.resolved();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto expect = [&](const std::string& family, auto change, const std::string& message) {
    EXPECT_EQ(error(family, change), message);
  };
  expect(
      "llama", [](auto& c) { c.sliding_window = 8; },
      "model.sliding_window is set, but the family llama has none");
  expect(
      "mistral", [](auto& c) { c.max_window_layers = 1; },
      "model.max_window_layers is set, but the family mistral has none");
  expect(
      "qwen2", [](auto& c) { c.attention_bias = true; },
      "model.attention_bias is set, but the family qwen2 has none");
  expect(
      "olmo2", [](auto& c) { c.max_position_embeddings = 8; },
      "model.max_position_embeddings is set, but the family olmo2 has none");
  expect(
      "llama", [](auto& c) { c.rope_scaling = RopeScaling{.rope_type = RopeType::yarn}; },
      "model.rope_scaling.factor is missing");
  expect(
      "llama",
      [](auto& c) { c.rope_scaling = RopeScaling{.rope_type = RopeType::yarn, .factor = 4}; },
      "model.rope_scaling.original_max_position_embeddings is missing");
  expect(
      "llama",
      [](auto& c) {
        c.rope_scaling = RopeScaling{
            .rope_type = RopeType::dynamic, .factor = 2, .original_max_position_embeddings = 64};
      },
      "model.rope_scaling.rope_type is dynamic, which the family llama does not have");
  expect(
      "llama", [](auto& c) { c.num_experts = 4; },
      "model.num_experts is set, but the family llama has none");
  expect(
      "llama", [](auto& c) { c.mlp_only_layers = {0}; },
      "model.mlp_only_layers is set, but the family llama has none");
  expect(
      "mixtral", [](auto& c) { c.decoder_sparse_step = 2; },
      "model.decoder_sparse_step is set, but the family mixtral has none");
  expect(
      "llama", [](auto& c) { c.router_z_loss_coef = 0.01; },
      "model.router_z_loss_coef is set, but the family llama has none");
  expect(
      "mixtral", [](auto& c) { c.num_experts_per_tok = 0; },
      "model.num_experts is 8 and num_experts_per_tok 0; the family mixtral needs both");
  expect(
      "mixtral", [](auto& c) { c.norm_topk_prob = false; },
      "model.norm_topk_prob is set, but the family mixtral has none");
  expect(
      "llama", [](auto& c) { c.layer_norm_epsilon = 1e-3; },
      "model.layer_norm_epsilon is set, but the family llama has none");
  expect(
      "mistral", [](auto& c) { c.layer_types = {"full_attention"}; },
      "model.layer_types is set, but the family mistral has none");
  expect(
      "llama", [](auto& c) { c.query_pre_attn_scalar = 8; },
      "model.query_pre_attn_scalar is set, but the family llama has none");
  expect(
      "llama", [](auto& c) { c.kv_lora_rank = 8; },
      "model.kv_lora_rank is set, but the family llama has none");
  expect(
      "deepseek_v3", [](auto& c) { c.kv_lora_rank = 0; },
      "model.kv_lora_rank is 0; the family deepseek_v3 has latent attention and needs it");
  expect(
      "deepseek_v3", [](auto& c) { c.head_dim = 14; },
      "model.head_dim is 14, but qk_nope_head_dim 8 and qk_rope_head_dim 4 add up to 12");
  expect(
      "arcee",
      [](auto& c) {
        c.rope_scaling = RopeScaling{.rope_type = RopeType::yarn,
                                     .factor = 4,
                                     .original_max_position_embeddings = 64,
                                     .mscale_all_dim = 1};
      },
      "model.rope_scaling.mscale_all_dim is set, which is for yarn and latent attention");
  expect(
      "gpt2", [](auto& c) { c.rope_theta = 5e5; },
      "model.rope_theta is set, but the family gpt2 has none");
  expect(
      "gpt2", [](auto& c) { c.rms_norm_eps = 1e-6; },
      "model.rms_norm_eps is set, but the family gpt2 has none");
  expect(
      "gpt2", [](auto& c) { c.output_router_logits = true; },
      "model.output_router_logits is set, but the family gpt2 has none");
  expect(
      "gpt2", [](auto& c) { c.rope_scaling = RopeScaling{}; },
      "model.rope_scaling is set, but the family gpt2 has none");
  expect(
      "gpt2", [](auto& c) { c.max_position_embeddings = 0; },
      "model.max_position_embeddings is 0; the family gpt2 learns that many positions");
}

TEST(Families, UnknownOnesAreToldWhichAreKnown) {
  try {
    parse_config_json(R"({"architectures": ["PhiForCausalLM"]})", "config.json");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "config.json: architectures is [\"PhiForCausalLM\"] and model_type missing; "
        "llamesh trains LlamaForCausalLM, MistralForCausalLM, MinistralForCausalLM, "
        "Ministral3ForCausalLM, Qwen2ForCausalLM, MiMoForCausalLM, "
        "Qwen3ForCausalLM, Olmo2ForCausalLM, Olmo3ForCausalLM, Exaone4ForCausalLM, "
        "SmolLM3ForCausalLM, InternLM2ForCausalLM, InternLM3ForCausalLM, SeedOssForCausalLM, "
        "Phi3ForCausalLM, "
        "HunYuanDenseV1ForCausalLM, "
        "Ernie4_5ForCausalLM, HeliumForCausalLM, GlmForCausalLM, Glm4ForCausalLM, "
        "GraniteForCausalLM, "
        "GraniteMoeHybridForCausalLM, CohereForCausalLM, Cohere2ForCausalLM, ArceeForCausalLM, "
        "ApertusForCausalLM, NemotronForCausalLM, Starcoder2ForCausalLM, GemmaForCausalLM, "
        "Gemma2ForCausalLM, Gemma3ForCausalLM, MixtralForCausalLM, Qwen2MoeForCausalLM, "
        "Qwen3MoeForCausalLM, "
        "OlmoeForCausalLM, Glm4MoeForCausalLM, Dots1ForCausalLM, BailingMoeV2ForCausalLM, "
        "MiniMaxM2ForCausalLM, "
        "GptOssForCausalLM, "
        "DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM, GPT2LMHeadModel, "
        "and the "
        "language model of Gemma3ForConditionalGeneration, Mistral3ForConditionalGeneration, "
        "LlavaForConditionalGeneration, LlavaNextForConditionalGeneration, "
        "LlavaOnevisionForConditionalGeneration, VipLlavaForConditionalGeneration, "
        "InternVLForConditionalGeneration, GotOcr2ForConditionalGeneration, "
        "Idefics3ForConditionalGeneration, SmolVLMForConditionalGeneration, "
        "Qwen2VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration, "
        "Qwen3VLForConditionalGeneration, Glm4vForConditionalGeneration, "
        "Glm46VForConditionalGeneration");
  }
}

/// Versions 4 and 5 of transformers name a RoPE per type of layer differently.
TEST(Gemma3, RopeByTypeIsReadFromBothVersions) {
  const auto before = config("gemma3_text", R"("rope_theta": 5e5, "rope_local_base_freq": 500,
      "rope_scaling": {"rope_type": "linear", "factor": 8})");
  const auto now = config("gemma3_text", R"("rope_parameters": {
      "full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 8},
      "sliding_attention": {"rope_theta": 500, "rope_type": "default"}})");
  EXPECT_EQ(to_config_json(before), to_config_json(now));
  EXPECT_EQ(now.rope_local_base_freq, 500);
  EXPECT_EQ(now.rope_scaling->factor, 8);
}

TEST(Gemma3, LayersDifferByTheirTypes) {
  auto c = config("gemma3_text", R"("rope_scaling": {"rope_type": "linear", "factor": 8})");
  c.layer_types = {"sliding_attention", "full_attention"};  // repeats
  c.num_hidden_layers = 5;
  c = c.resolved();
  const auto traits = traits_of(c);
  std::vector<std::int64_t> windows;
  std::vector<double> thetas;
  for (const auto& layer : traits.layers) {
    windows.push_back(layer.window);
    thetas.push_back(layer.rope->theta);
    EXPECT_EQ(layer.rope->scaling.has_value(), layer.window == 0);
    EXPECT_EQ(layer.score_divisor, 16);
  }
  EXPECT_EQ(windows, (std::vector<std::int64_t>{4096, 0, 4096, 0, 4096}));
  EXPECT_EQ(thetas, (std::vector<double>{1e4, 1e6, 1e4, 1e6, 1e4}));
  EXPECT_EQ(traits.norm_offset, 1);
  EXPECT_FLOAT_EQ(traits.embedding_scale, std::sqrt(48.0F));
  for (const auto& p : parameter_table(c).parameters)
    EXPECT_EQ(p.initial, p.shape.size() == 1 ? Initial::zeros : Initial::normal) << p.name;
}

/// The dict holds each element of each parameter once, in tensors as transformers writes them.
TEST(Gpt2, StateDictIsTransformers) {
  const auto c = config("gpt2");
  const auto table = parameter_table(c);
  const auto dict = state_dict(c, table);
  std::vector<std::string> names;
  std::int64_t numel = 0;
  for (const auto& tensor : dict) {
    numel += llamesh::numel(tensor.shape);
    std::int64_t held = 0;
    for (const auto& part : tensor.parts) held += part.in_tensor.numel();
    EXPECT_EQ(held, llamesh::numel(tensor.shape)) << tensor.name;
    if (tensor.name.starts_with("transformer.h.0."))
      names.push_back(fmt::format("{} {}", tensor.name.substr(16), fmt::join(tensor.shape, "x")));
  }
  EXPECT_EQ(numel, table.numel());
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "attn.c_attn.bias 144", "attn.c_attn.weight 48x144", "attn.c_proj.bias 48",
                       "attn.c_proj.weight 48x48", "ln_1.bias 48", "ln_1.weight 48", "ln_2.bias 48",
                       "ln_2.weight 48", "mlp.c_fc.bias 192", "mlp.c_fc.weight 48x192",
                       "mlp.c_proj.bias 48", "mlp.c_proj.weight 192x48"}));
}

/// 124,439,808 parameters, of which the 38.6 M rows of the tied head multiply and the positions do
/// not.
TEST(Gpt2, Counts) {
  ModelConfig c;
  c.family = "gpt2";
  c.hidden_size = 768;
  c.intermediate_size = 3072;
  c.num_hidden_layers = c.num_attention_heads = 12;
  c.vocab_size = 50257;
  c.max_position_embeddings = 1024;
  c.tie_word_embeddings = true;
  const auto table = parameter_table(c.resolved());
  EXPECT_EQ(table.numel(), 124'439'808);
  EXPECT_EQ(table.matmul_numel(), 124'439'808 - 1024 * 768);
}

/// A folder pairs rows 0 and 1, and 2 and 3, of each head; ours are pairs i and i + 5, of which the
/// first two rotate.
TEST(Glm4, StateDictOrdersTheDimsOfAHead) {
  const auto c = config("glm4", R"("head_dim": 10, "partial_rotary_factor": 0.4)");
  const auto table = parameter_table(c);
  for (const auto& tensor : state_dict(c, table)) {
    if (tensor.name != "model.layers.1.self_attn.k_proj.bias") continue;
    std::vector<std::int64_t> ours(static_cast<std::size_t>(numel(tensor.shape)), -1);
    for (const auto& part : tensor.parts)
      for_each_stored(part, tensor.shape, {Box::whole(tensor.shape), 3, numel(tensor.shape) - 3},
                      [&](const StoredRun& run, std::int64_t at, std::int64_t) {
                        for (std::int64_t i = 0; i < run.count; ++i)
                          ours[static_cast<std::size_t>(run.begin + i)] = 3 + at + i;
                      });
    ours.resize(20);  // elements 0, 1 and 2 were not asked for
    EXPECT_EQ(ours, (std::vector<std::int64_t>{-1, 5,  -1, 6,  -1, 3,  4,  7,  8,  9,  //
                                               10, 15, 11, 16, 12, 13, 14, 17, 18, 19}));
    return;
  }
  ADD_FAILURE() << "no bias";
}

/// The rows of wqkv are, for each of two kv heads, those of two queries, a key and a value.
TEST(InternLM2, StateDictFusesByKvHead) {
  auto c = config("internlm2");
  c.hidden_size = 8;
  c.num_attention_heads = 4;
  c.head_dim = 2;
  const auto table = parameter_table(c.resolved());
  std::int64_t all = 0;
  for (const auto& tensor : state_dict(c, table)) {
    all += numel(tensor.shape);
    if (tensor.name != "model.layers.0.attention.wqkv.bias") continue;
    EXPECT_EQ(tensor.shape, Shape{16});
    std::vector<std::string> held(16);
    for (const auto& part : tensor.parts)
      for_each_stored(part, tensor.shape,
                      {Box::whole(table[part.parameter].shape), 0, table[part.parameter].numel()},
                      [&](const StoredRun& run, std::int64_t at, std::int64_t) {
                        for (std::int64_t i = 0; i < run.count; ++i)
                          held[static_cast<std::size_t>(run.begin + i)] =
                              fmt::format("{}{}", table[part.parameter].name[25], at + i);
                      });
    EXPECT_EQ(held, (std::vector<std::string>{"q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1",  //
                                              "q4", "q5", "q6", "q7", "k2", "k3", "v2", "v3"}));
  }
  EXPECT_EQ(all, table.numel());
}

/// Experts are stacked in memory; a folder has a tensor for each matrix of each.
TEST(Mixtral, StateDictIsTransformers) {
  const auto c = config("mixtral", R"("num_local_experts": 2)");
  const auto table = parameter_table(c);
  std::vector<std::string> names;
  std::int64_t numel = 0;
  for (const auto& tensor : state_dict(c, table)) {
    numel += llamesh::numel(tensor.shape);
    if (tensor.name.starts_with("model.layers.0.block_sparse_moe."))
      names.push_back(fmt::format("{} {}", tensor.name.substr(32), fmt::join(tensor.shape, "x")));
  }
  EXPECT_EQ(numel, table.numel());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "gate.weight 2x48", "experts.0.w1.weight 80x48", "experts.1.w1.weight 80x48",
                       "experts.0.w3.weight 80x48", "experts.1.w3.weight 80x48",
                       "experts.0.w2.weight 48x80", "experts.1.w2.weight 48x80"}));
}

/// Returns which elements of parameters a tensor holds, as PARAMETER:INDEX, read in two ranges.
std::vector<std::string> held_by(const StateDictTensor& tensor, const ParameterTable& table) {
  std::vector<std::string> held(static_cast<std::size_t>(numel(tensor.shape)), "nothing");
  for (const auto& part : tensor.parts) {
    const auto& p = table[part.parameter];
    const auto name = p.name.substr(p.name.rfind('.') + 1);
    const auto whole = Box::whole(p.shape);
    for (const auto& [begin, end] :
         {std::pair<std::int64_t, std::int64_t>(0, 5), {5, whole.numel()}})
      for_each_stored(
          part, tensor.shape, {whole, begin, end - begin},
          [&, first = begin](const StoredRun& run, std::int64_t at, std::int64_t stride) {
            for (std::int64_t i = 0; i < run.count; ++i)
              held[static_cast<std::size_t>(run.begin + i * run.step)] =
                  fmt::format("{}:{}", name, first + at + i * stride);
          });
  }
  return held;
}

/// A folder has each expert's matrices transposed, and in a row gate and up in turn. In MXFP4, they
/// are not transposed.
TEST(GptOss, StateDictInterleavesGateAndUp) {
  auto c = config("gpt_oss", R"("num_local_experts": 2)");
  c.hidden_size = 3;
  c.intermediate_size = 2;
  c.num_hidden_layers = 1;
  c.layer_types = {"full_attention"};
  const auto table = parameter_table(c.resolved());
  std::map<std::string, StateDictTensor> tensors;
  std::int64_t all = 0;
  for (auto& tensor : state_dict(c, table)) {
    all += numel(tensor.shape);
    if (const auto at = tensor.name.find("experts."); at != std::string::npos)
      tensors[tensor.name.substr(at + 8)] = std::move(tensor);
  }
  EXPECT_EQ(all, table.numel());
  ASSERT_EQ(tensors.size(), 4);
  using Held = std::vector<std::string>;
  const auto& gate_up = tensors.at("gate_up_proj");
  EXPECT_EQ(gate_up.shape, (Shape{2, 3, 4}));
  auto held = held_by(gate_up, table);
  const auto quantized = with_exchanged_dims(gate_up);
  EXPECT_EQ(quantized.shape, (Shape{2, 4, 3}));
  const auto rows = held_by(quantized, table);
  for (std::size_t i = 0; i < held.size(); ++i)
    EXPECT_EQ(rows[i / 12 * 12 + i % 4 * 3 + i % 12 / 4], held[i]);
  held.erase(held.begin(), held.begin() + 12);  // the second expert's
  EXPECT_EQ(held, (Held{"gate_proj:6", "up_proj:6", "gate_proj:9", "up_proj:9",    //
                        "gate_proj:7", "up_proj:7", "gate_proj:10", "up_proj:10",  //
                        "gate_proj:8", "up_proj:8", "gate_proj:11", "up_proj:11"}));
  EXPECT_EQ(held_by(tensors.at("gate_up_proj_bias"), table),
            (Held{"gate_proj_bias:0", "up_proj_bias:0", "gate_proj_bias:1", "up_proj_bias:1",
                  "gate_proj_bias:2", "up_proj_bias:2", "gate_proj_bias:3", "up_proj_bias:3"}));
  EXPECT_EQ(tensors.at("down_proj").shape, (Shape{2, 2, 3}));
  held = held_by(tensors.at("down_proj"), table);
  held.resize(6);
  EXPECT_EQ(held, (Held{"down_proj:0", "down_proj:2", "down_proj:4", "down_proj:1", "down_proj:3",
                        "down_proj:5"}));
  EXPECT_EQ(held_by(tensors.at("down_proj_bias"), table).back(), "down_proj_bias:5");
  for (const auto& p : table.parameters) {
    const bool of_expert = p.name.ends_with("_proj"), matrix = p.name.ends_with("weight");
    EXPECT_EQ(p.decays(), of_expert || (matrix && p.shape.size() > 1)) << p.name;
  }
}

TEST(Mixtral, ATokenTakesSomeOfTheExperts) {
  const auto all = parameter_table(config("mixtral", R"("num_experts_per_tok": 8)"));
  const auto two = parameter_table(config("mixtral"));
  EXPECT_EQ(two.numel(), all.numel());
  EXPECT_EQ(all.matmul_numel() - two.matmul_numel(), 3 * 6 * 3 * 48 * 80);
}

/// As transformers' Qwen3MoeDecoderLayer chooses: every second layer, but not layer 3.
TEST(Qwen3Moe, DenseLayersAreAmongSparseOnes) {
  auto c = config("qwen3_moe", R"("mlp_only_layers": [1])");
  c.num_hidden_layers = 7;
  c.decoder_sparse_step = 2;
  c.mlp_only_layers = {3};
  const auto table = parameter_table(c.resolved());
  std::vector<std::size_t> sparse;
  for (std::size_t i = 0; i < table.layers.size(); ++i) {
    const auto mlp = table.child(table.layers[i], "mlp");
    if (table.find_child(mlp, "experts")) sparse.push_back(i);
    EXPECT_EQ(table.find_child(mlp, "gate_proj").has_value(), !table.find_child(mlp, "experts"));
  }
  EXPECT_EQ(sparse, (std::vector<std::size_t>{1, 5}));
  EXPECT_EQ(table.last_of_kind(), (std::vector<std::size_t>{6, 5, 6, 6, 6, 5, 6}));
  std::vector<std::int64_t> dense;  // their sizes
  for (const auto& p : table.parameters)
    if (p.name.ends_with(".mlp.gate_proj.weight")) dense.push_back(p.shape[0]);
  EXPECT_EQ(dense, std::vector<std::int64_t>(5, 80));
}

}  // namespace
}  // namespace llamesh::model
