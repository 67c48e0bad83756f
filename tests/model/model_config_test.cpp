#include "model/description/model_config.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.hpp"
#include "model/description/config_json.hpp"
#include "model/description/parameters.hpp"
#include "model/layers/rope_table.hpp"

namespace llamesh::model {
namespace {

TEST(ModelConfig, FillsInWhatIsLeftOpen) {
  ModelConfig c;
  c.hidden_size = 96;
  c.num_attention_heads = 6;
  const auto r = c.resolved();
  EXPECT_EQ(r.num_key_value_heads, 6);
  EXPECT_EQ(r.head_dim, 16);
}

TEST(ModelConfig, MisfitsNameTheKey) {
  const auto error = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig c;
    change(c);
    try {
      c.resolved();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::bad_input);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(error([](auto& c) { c.hidden_size = 0; }).find("hidden_size is 0"), std::string::npos);
  EXPECT_NE(error([](auto& c) { c.num_key_value_heads = 3; }).find("not a multiple"),
            std::string::npos);
  EXPECT_NE(error([](auto& c) { c.hidden_size = 100; }).find("set head_dim"), std::string::npos);
  EXPECT_NE(error([](auto& c) { c.head_dim = 7; }).find("even"), std::string::npos);
  EXPECT_NE(error([](auto& c) { c.vocab_size = -1; }).find("vocab_size is -1"), std::string::npos);
  EXPECT_NE(error([](auto& c) {
              c.rope_scaling = RopeScaling{.low_freq_factor = 4, .high_freq_factor = 4};
            }).find("high_freq_factor 4 is not above low_freq_factor 4"),
            std::string::npos);
}

/// With the largest accepted sizes a table can still be built, and its bytes counted.
TEST(ModelConfig, WhatIsFarTooLargeIsRefused) {
  constexpr std::int64_t widest = 1 << 20;
  ModelConfig c;
  c.hidden_size = c.intermediate_size = widest;
  c.num_attention_heads = 8;
  c.num_hidden_layers = 10'000;
  c.vocab_size = 2'147'483'647;
  const auto in_layers = 10'000 * (4 * widest * widest + 3 * widest * widest + 2 * widest);
  EXPECT_EQ(parameter_table(c.resolved()).numel(), in_layers + (2 * c.vocab_size + 1) * widest);
  for (auto* number : {&c.hidden_size, &c.intermediate_size, &c.num_hidden_layers, &c.vocab_size,
                       &c.num_attention_heads, &c.head_dim}) {
    const auto before = *number;
    *number = std::int64_t{1} << 40;
    EXPECT_THROW(c.resolved(), Error);
    *number = before;
  }
}

/// Returns the difference that a change makes.
std::string difference_after(ModelConfig config, const std::function<void(ModelConfig&)>& change) {
  const auto then = config.resolved();
  change(config);
  return difference(then, config.resolved());
}

TEST(ModelDifference, NamesEachKeyWithBothValues) {
  ModelConfig c;
  EXPECT_EQ(difference_after(c, [](auto& now) { now.num_attention_heads = 4; }),
            "model.num_attention_heads is 4 (it was 8), model.num_key_value_heads is 4 (it was 8), "
            "model.head_dim is 64 (it was 32)");
  EXPECT_EQ(difference_after(c, [](auto& now) { now.tie_word_embeddings = true; }),
            "model.tie_word_embeddings is true (it was false)");
  EXPECT_EQ(difference_after(c, [](auto& now) { now.family = "mistral"; }),
            "model.family is mistral (it was llama)");
  EXPECT_EQ(difference_after(c,
                             [](auto& now) {
                               now.rope_theta = 5e5;
                               now.rms_norm_eps = 1e-6;
                               now.initializer_range = 0.01;
                             }),
            "");
  c.lora.emplace();
  EXPECT_EQ(difference_after(c, [](auto& now) { now.lora->alpha = 64; }),
            "model.lora.alpha is 64 (it was 8)");
  EXPECT_EQ(difference_after(c, [](auto& now) { now.lora->init = LoraInit::gaussian; }), "");
}

TEST(ModelDifference, NamesKeysOfExperts) {
  ModelConfig c;
  c.family = "qwen3_moe";
  c.num_experts = 4;
  c.num_experts_per_tok = 2;
  c.decoder_sparse_step = 2;
  EXPECT_EQ(difference_after(c, [](auto& now) { now.num_experts_per_tok = 1; }),
            "model.num_experts_per_tok is 1 (it was 2)");
  EXPECT_EQ(difference_after(c, [](auto& now) { now.moe_intermediate_size = 96; }),
            "model.moe_intermediate_size is 96 (it was 688)");
  EXPECT_EQ(difference_after(c, [](auto& now) { now.mlp_only_layers = {3}; }),
            "model.mlp_only_layers is [3] (it was [])");
  // Layer 0 has no experts anyway, and the width of an MLP is that of the experts if none is given.
  EXPECT_EQ(difference_after(c,
                             [](auto& now) {
                               now.mlp_only_layers = {0};
                               now.moe_intermediate_size = now.intermediate_size;
                               now.router_aux_loss_coef = 0.1;
                             }),
            "");
}

/// A checkpoint holds its model as config.json.
TEST(ModelDifference, IsNoneAfterConfigJson) {
  ModelConfig dense, window, experts, gpt2, adapters;
  dense.attention_bias = dense.tie_word_embeddings = true;
  dense.head_dim = 48;
  window.family = "qwen2";
  window.num_key_value_heads = 2;
  window.sliding_window = 16;
  window.max_window_layers = 1;
  experts.family = "qwen3_moe";
  experts.num_experts = 4;
  experts.num_experts_per_tok = 2;
  experts.norm_topk_prob = false;
  gpt2.family = "gpt2";
  gpt2.max_position_embeddings = 64;
  adapters.lora = Lora{.rank = 3, .alpha = 0.1, .targets = {"v_proj", "q_proj"}, .rslora = true};
  for (const auto& config : {dense, window, experts, gpt2, adapters}) {
    const auto now = config.resolved();
    EXPECT_EQ(difference(parse_config_json(to_config_json(now), "config.json"), now), "");
  }
}

// Sizes as published with the models.
TEST(ParameterTable, CountsOfKnownModels) {
  ModelConfig c;
  c.hidden_size = 4096;
  c.intermediate_size = 11008;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.vocab_size = 32000;
  EXPECT_EQ(parameter_table(c.resolved()).numel(), 6'738'415'616);
  c = {};
  c.hidden_size = 2048;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 16;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 8;
  c.vocab_size = 128256;
  c.tie_word_embeddings = true;
  EXPECT_EQ(parameter_table(c.resolved()).numel(), 1'235'814'400);
}

TEST(ParameterTable, NamesAreHuggingFaces) {
  ModelConfig c;
  c.num_hidden_layers = 1;
  const auto table = parameter_table(c.resolved());
  std::vector<std::string> names;
  for (const auto& p : table.parameters) names.push_back(p.name);
  EXPECT_EQ(
      names,
      (std::vector<std::string>{
          "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
          "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
          "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
          "model.norm.weight", "lm_head.weight"}));
}

TEST(Rope, OfSomeDimsLeavesTheOthersAsTheyAre) {
  const RopeScaling yarn{.rope_type = RopeType::yarn,
                         .factor = 4,
                         .original_max_position_embeddings = 64,
                         .attention_factor = 1.5};
  const Rope rope{.theta = 10000, .dims = 4, .scaling = yarn};
  const auto frequencies = rope_frequencies(rope, 10);
  EXPECT_EQ(frequencies.size(), 5U);
  EXPECT_EQ(frequencies[0], rope_frequencies({.theta = 10000, .scaling = yarn}, 4)[0]);
  EXPECT_EQ(frequencies[2], 0);
  std::vector<float> table(20);
  rope_table(rope, 10, table);
  EXPECT_EQ(table[10 + 2], 1);
  EXPECT_EQ(table[10 + 5 + 2], 0);
  EXPECT_EQ(table[1], 1.5F);
}

TEST(Rope, ScalingStretchesLongWavelengthsOnly) {
  Rope rope{.theta = 500000};
  const auto plain = rope_frequencies(rope, 64);
  rope.scaling = RopeScaling{.factor = 8, .original_max_position_embeddings = 8192};
  const auto scaled = rope_frequencies(rope, 64);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_DOUBLE_EQ(scaled.back(), plain.back() / 8);
  for (std::size_t i = 1; i < scaled.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
}

}  // namespace
}  // namespace llamesh::model
