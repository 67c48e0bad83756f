#include "sharding/wrap_policy.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace llamesh::sharding {
namespace {

const comm::ParallelDims two_shards({{"shard", 2}});

model::ModelConfig llama2(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
                          std::int64_t heads, std::int64_t kv_heads) {
  model::ModelConfig c;
  c.hidden_size = hidden;
  c.intermediate_size = intermediate;
  c.num_hidden_layers = layers;
  c.num_attention_heads = heads;
  c.num_key_value_heads = kv_heads;
  c.vocab_size = 32000;
  return c.resolved();
}

std::vector<std::string> unit_names(const model::ModelConfig& config, const WrapOptions& options) {
  const auto table = model::parameter_table(config);
  std::vector<std::string> names;
  for (const auto& unit : make_units(table, options)) names.push_back(unit.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(WrapPolicy, ByLayer) {
  EXPECT_EQ(
      unit_names(llama2(64, 96, 2, 4, 4), {Wrap::layer, 0}),
      (Names{"model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm + lm_head"}));
}

TEST(WrapPolicy, ATiedEmbeddingStaysInTheRoot) {
  auto config = llama2(64, 96, 2, 4, 4);
  config.tie_word_embeddings = true;
  EXPECT_EQ(unit_names(config, {Wrap::layer, 0}),
            (Names{"root", "model.layers.0", "model.layers.1", "model.norm"}));
}

TEST(WrapPolicy, NoneIsOneUnit) {
  EXPECT_EQ(unit_names(llama2(64, 96, 2, 4, 4), {Wrap::none, 0}), (Names{"root"}));
}

// FSDP's size policy on the two models, with its default 1e8 elements.
TEST(WrapPolicy, BySizeOfLlama2With7B) {
  EXPECT_EQ(
      unit_names(llama2(4096, 11008, 2, 32, 32), {Wrap::size, 100'000'000}),
      (Names{"root", "model.embed_tokens", "model.layers.0.mlp", "model.layers.1.mlp", "lm_head"}));
}

TEST(WrapPolicy, BySizeOfLlama2With70B) {
  EXPECT_EQ(unit_names(llama2(8192, 28672, 1, 64, 8), {Wrap::size, 100'000'000}),
            (Names{"root", "model.embed_tokens", "model.layers.0.self_attn",
                   "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                   "model.layers.0.mlp.down_proj", "lm_head"}));
}

TEST(WrapPolicy, FrozenParametersHaveUnitsOfTheirOwn) {
  const auto config = llama2(64, 96, 3, 4, 4);
  auto table = model::parameter_table(config);
  model::freeze_parameters(
      table, config,
      {{"model.embed_tokens", "model.layers.0", "model.layers.1.mlp", "lm_head"}, {}});
  const auto placements = whole_and_sharded(table, two_shards);
  auto units = make_units(table, {Wrap::layer, 0}, two_shards, placements);
  Names names;
  for (const auto& unit : units) names.push_back(unit.name);
  EXPECT_EQ(names, (Names{"model.embed_tokens (frozen)", "model.layers.0 (frozen)",
                          "model.layers.1", "model.layers.1 (frozen)", "model.layers.2",
                          "model.norm + lm_head", "model.norm + lm_head (frozen)"}));
  const ShardLayout layout(table, std::move(units), two_shards, placements);
  EXPECT_TRUE(layout.units()[1].frozen);
  EXPECT_FALSE(layout.units()[2].frozen);
  std::int64_t frozen = 0;
  for (const auto& unit : layout.units()) frozen += unit.frozen ? unit.shard_numel : 0;
  EXPECT_EQ(layout.trained_shard_numel(), layout.shard_numel() - frozen);
  EXPECT_EQ(table.backward_end(), table.layers[1]);
}

TEST(WrapPolicy, EveryParameterLiesInOneUnit) {
  const auto table = model::parameter_table(llama2(64, 96, 3, 4, 2));
  for (const std::int64_t min_numel : {1, 500, 5000, 20000, 1000000}) {
    std::vector<int> seen(table.parameters.size(), 0);
    for (const auto& unit : make_units(table, {Wrap::size, min_numel}))
      for (const auto id : unit.parameters) ++seen[model::index(id)];
    for (const int times : seen) EXPECT_EQ(times, 1) << "min_numel " << min_numel;
  }
}

/// Returns the first words on each line, which name units and parameters.
Names described(const model::ModelConfig& config, const WrapOptions& options, Layers layers) {
  const auto table = model::parameter_table(config);
  std::istringstream lines(
      describe_units(ShardLayout(table, make_units(table, options), two_shards), layers));
  Names names;
  for (std::string line; std::getline(lines, line);)
    names.push_back(line.substr(0, line.find("  ", line.find_first_not_of(' '))));
  return names;
}

TEST(WrapPolicy, DescriptionFoldsEqualLayers) {
  EXPECT_EQ(described(llama2(64, 96, 4, 4, 4), {}, Layers::folded),
            (Names{"unit", "model.embed_tokens", "  weight", "model.layers.0..3",
                   "  self_attn.q_proj.weight", "  self_attn.k_proj.weight",
                   "  self_attn.v_proj.weight", "  self_attn.o_proj.weight",
                   "  mlp.gate_proj.weight", "  mlp.up_proj.weight", "  mlp.down_proj.weight",
                   "  input_layernorm.weight", "  post_attention_layernorm.weight",
                   "model.norm + lm_head", "  model.norm.weight", "  lm_head.weight", "6 units"}));
  const auto all = described(llama2(64, 96, 4, 4, 4), {}, Layers::each);
  EXPECT_EQ(all.size(), 17U + 3 * 10);
  EXPECT_NE(std::ranges::find(all, "model.layers.2"), all.end());
}

// By size, the layers' norms are in the root unit, and each layer has several units.
TEST(WrapPolicy, DescriptionFoldsWhatLayersHaveInOtherUnits) {
  EXPECT_EQ(described(llama2(64, 96, 3, 4, 4), {Wrap::size, 10000}, Layers::folded),
            (Names{"unit", "root", "  model.layers.0..2.input_layernorm.weight",
                   "  model.layers.0..2.post_attention_layernorm.weight", "  model.norm.weight",
                   "model.embed_tokens", "  weight", "model.layers.0..2.self_attn",
                   "  q_proj.weight", "  k_proj.weight", "  v_proj.weight", "  o_proj.weight",
                   "model.layers.0..2.mlp", "  gate_proj.weight", "  up_proj.weight",
                   "  down_proj.weight", "lm_head", "  weight", "9 units"}));
}

// A layer's norms are behind its other modules in the table, but entered before these.
TEST(WrapPolicy, NoNormIsAUnit) {
  const auto names = unit_names(llama2(64, 96, 1, 4, 4), {Wrap::size, 1});
  EXPECT_EQ(names, (Names{"root", "model.embed_tokens", "model.layers.0",
                          "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                          "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj",
                          "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                          "model.layers.0.mlp.down_proj", "lm_head"}));
}

TEST(WrapPolicy, DescriptionSaysSizes) {
  const auto table = model::parameter_table(llama2(64, 96, 3, 4, 4));
  const auto text =
      describe_units(ShardLayout(table, make_units(table, {}), two_shards), Layers::folded);
  EXPECT_NE(text.find(" 2048000"), std::string::npos);      // 32000 x 64
  EXPECT_NE(text.find(" 3 x 34944 "), std::string::npos);   // 4 x 64^2 + 3 x 64 x 96 + 2 x 64
  EXPECT_NE(text.find(" 3 x 17472\n"), std::string::npos);  // per rank, with 2 ranks
  EXPECT_NE(text.find(fmt::format(" {} ", table.numel())), std::string::npos);
}

}  // namespace
}  // namespace llamesh::sharding
