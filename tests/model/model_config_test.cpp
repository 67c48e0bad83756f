#include "model/model_config.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.hpp"
#include "model/parameters.hpp"
#include "model/rope_table.hpp"

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

TEST(Rope, ScalingStretchesLongWavelengthsOnly) {
  ModelConfig c;
  c.head_dim = 64;
  c.rope_theta = 500000;
  const auto plain = rope_frequencies(c);
  c.rope_scaling = RopeScaling{.factor = 8, .original_max_position_embeddings = 8192};
  const auto scaled = rope_frequencies(c);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_DOUBLE_EQ(scaled.back(), plain.back() / 8);
  for (std::size_t i = 1; i < scaled.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
}

}  // namespace
}  // namespace llamesh::model
