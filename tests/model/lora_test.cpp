#include "model/description/lora.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/json.hpp"
#include "core/philox.hpp"
#include "golden.hpp"
#include "model/description/config_json.hpp"
#include "support.hpp"

namespace llamesh::model {
namespace {

ModelConfig config_with(std::vector<std::string> targets, const std::string& family = "llama") {
  ModelConfig config;
  config.family = family;
  config.num_hidden_layers = 2;
  if (family == "gpt2") config.max_position_embeddings = 32;
  if (family == "mixtral") config.num_experts = 4, config.num_experts_per_tok = 2;
  config.lora = Lora{.rank = 3, .targets = std::move(targets)};
  return config.resolved();
}

std::vector<std::string> adapters_of(const ParameterTable& table) {
  std::vector<std::string> names;
  for (const auto& p : table.parameters)
    if (is_adapter(p)) names.push_back(p.name);
  return names;
}

TEST(Lora, FollowsTheLayersParametersWithAllAsBeforeAllBs) {
  const auto table = parameter_table(config_with({"v_proj", "q_proj"}));
  const auto names = adapters_of(table);
  const std::string first = "model.layers.0.self_attn.", second = "model.layers.1.self_attn.";
  EXPECT_EQ(names, (std::vector<std::string>{
                       first + "q_proj.lora_A.weight", first + "v_proj.lora_A.weight",
                       first + "q_proj.lora_B.weight", first + "v_proj.lora_B.weight",
                       second + "q_proj.lora_A.weight", second + "v_proj.lora_A.weight",
                       second + "q_proj.lora_B.weight", second + "v_proj.lora_B.weight"}));
  const auto at = std::ranges::find(table.parameters, names[0], &Parameter::name);
  EXPECT_EQ((at - 1)->name, "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ((at + 4)->name, "model.layers.1.self_attn.q_proj.weight");
}

TEST(Lora, AllButTheAdaptersAreFrozen) {
  const auto config = config_with({"all-linear"});
  const auto table = parameter_table(config);
  for (const auto& p : table.parameters) EXPECT_EQ(p.frozen, !is_adapter(p)) << p.name;
  EXPECT_EQ(adapters_of(table).size(), 2U * 7 * 2);
  const auto base = parameter_table(config.base());
  const auto ids = base_parameters(table);
  ASSERT_EQ(ids.size(), base.parameters.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(table[ids[i]].name, base.parameters[i].name);
  EXPECT_EQ(table[table.lm_head.weight].name, "lm_head.weight");
  EXPECT_EQ(adapters_by_weight(table).size(), 2U * 7);
}

TEST(Lora, TargetsAreWholeNamesLastPartsOrPatterns) {
  const auto count = [](std::vector<std::string> targets, const char* family = "llama") {
    return adapters_of(parameter_table(config_with(std::move(targets), family))).size() / 2;
  };
  EXPECT_EQ(count({"q_proj"}), 2U);
  EXPECT_EQ(count({"self_attn.q_proj"}), 2U);
  EXPECT_EQ(count({"model.layers.1.mlp.up_proj"}), 1U);
  EXPECT_EQ(count({"layers.*.mlp.*"}), 6U);
  EXPECT_EQ(count({"q_proj", "q_proj"}), 2U);
  EXPECT_EQ(count({"c_proj"}, "gpt2"), 4U);  // attention's and the MLP's, as in PEFT
  EXPECT_EQ(count({"all-linear"}, "mixtral"), 2U * 4);
}

TEST(Lora, LayersThatFoldersFuseShareTheirA) {
  const auto table = parameter_table(config_with({"all-linear"}, "phi3"));
  std::vector<std::string> names;
  for (const auto& p : table.parameters)
    if (is_adapter(p) && p.name.starts_with("model.layers.1."))
      names.push_back(p.name.substr(std::string("model.layers.1.").size()));
  EXPECT_EQ(names, (std::vector<std::string>{
                       "self_attn.qkv_proj.lora_A.weight", "self_attn.o_proj.lora_A.weight",
                       "mlp.gate_up_proj.lora_A.weight", "mlp.down_proj.lora_A.weight",
                       "self_attn.q_proj.lora_B.weight", "self_attn.k_proj.lora_B.weight",
                       "self_attn.v_proj.lora_B.weight", "self_attn.o_proj.lora_B.weight",
                       "mlp.gate_proj.lora_B.weight", "mlp.up_proj.lora_B.weight",
                       "mlp.down_proj.lora_B.weight"}));
  const auto attention = table.child(table.layers[1], "self_attn");
  const auto q = table.weight_module(attention, "q_proj"),
             v = table.weight_module(attention, "v_proj");
  ASSERT_TRUE(q.adapter && v.adapter);
  EXPECT_EQ(q.adapter->a, v.adapter->a);
  EXPECT_EQ(table[q.adapter->a].name, "model.layers.1.self_attn.qkv_proj.lora_A.weight");
  EXPECT_NE(q.adapter->b, v.adapter->b);
  const auto rank = table[q.adapter->a].shape[0];
  EXPECT_EQ(adapter_columns(table), rank) << "q, k and v have one x A^T";
  EXPECT_EQ(adapter_columns(parameter_table(config_with({"all-linear"}))), 3 * rank);
}

/// Returns which row of which parameter each row of a stored matrix is.
std::map<std::int64_t, std::pair<ParameterId, std::int64_t>> rows_of(const StateDictTensor& tensor,
                                                                     const ParameterTable& table) {
  std::map<std::int64_t, std::pair<ParameterId, std::int64_t>> rows;
  const auto columns = tensor.shape[1];
  for (const auto& part : tensor.parts) {
    const auto whole = Box::whole(table[part.parameter].shape);
    for_each_stored(part, tensor.shape, {whole, 0, whole.numel()},
                    [&](const StoredRun& run, std::int64_t at, std::int64_t stride) {
                      for (std::int64_t i = 0; i < run.count; ++i)
                        if (const auto to = run.begin + i * run.step; to % columns == 0)
                          rows[to / columns] = {part.parameter, (at + i * stride) / columns};
                    });
  }
  return rows;
}

TEST(Lora, FoldersHaveTheRowsOfBAsThoseOfItsWeight) {
  for (const auto* name : {"internlm2", "ling2", "granite4", "glm4", "phi3"}) {
    auto config = test::config_of(test::load_golden(name).config());
    config.lora = Lora{.rank = 3, .targets = {"all-linear"}};
    const auto table = parameter_table(config);
    const auto adapters = adapters_by_weight(table);
    std::map<std::string, StateDictTensor> stored;
    for (const auto& tensor : adapter_state_dict(config, table)) stored[tensor.name] = tensor;
    std::size_t fused = 0;
    for (const auto& tensor : state_dict(config, table)) {
      const auto first = adapters.find(tensor.parts.front().parameter);
      if (first == adapters.end()) continue;
      const auto module = tensor.name.substr(0, tensor.name.rfind('.'));
      ASSERT_TRUE(stored.contains(module + ".lora_A.weight")) << name << " " << module;
      ASSERT_TRUE(stored.contains(module + ".lora_B.weight")) << name << " " << module;
      const auto& b = stored.at(module + ".lora_B.weight");
      EXPECT_EQ(b.shape, (Shape{tensor.shape[0], 3}));
      auto expected = rows_of(tensor, table);
      ASSERT_EQ(std::ssize(expected), tensor.shape[0]);
      fused += expected.begin()->second.first == expected.rbegin()->second.first ? 0 : 1;
      for (auto& [row, from] : expected) from.first = adapters.at(from.first).b;
      EXPECT_EQ(rows_of(b, table), expected) << name << " " << module;
      stored.erase(module + ".lora_A.weight");
      stored.erase(module + ".lora_B.weight");
    }
    EXPECT_TRUE(stored.empty()) << name << " " << stored.begin()->first;
    EXPECT_GE(fused, 1U) << name;
  }
}

TEST(Lora, TargetsThatCannotHaveAnAdapterAreRefused) {
  const auto error = [](std::vector<std::string> targets, const char* family = "llama") {
    const auto config = config_with(std::move(targets), family);
    return test::error_of([&] { parameter_table(config); });
  };
  const auto expect_in = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_in(error({"q_prj"}), "'q_prj' matches no linear layer");
  expect_in(error({"q_prj"}), "did you mean 'q_proj'");
  expect_in(error({"embed_tokens"}), "embed_tokens takes no adapter");
  expect_in(error({"lm_head"}), "lm_head takes no adapter");
  expect_in(error({"gate"}, "mixtral"), "gate takes no adapter");
  expect_in(error({"experts"}, "mixtral"), "experts takes no adapter");
  expect_in(error({"w1"}, "mixtral"), "'w1' matches no linear layer");
  expect_in(error({"gate_proj"}, "phi3"),
            "'gate_proj' includes gate_proj, which folders of the family phi3 have within "
            "gate_up_proj, as one layer with one adapter; name gate_up_proj");
  expect_in(error({"qkv_prj"}, "phi3"), "did you mean 'qkv_proj'");
  expect_in(error({}), "targets is empty");
}

TEST(Lora, TargetsThatNameNothingAreDroppedBesideOthers) {
  using Names = std::vector<std::string>;
  const auto kept = [](Names targets, const char* family = "llama") {
    auto config = config_with(std::move(targets), family);
    const auto before = config.lora->targets.size();
    const auto dropped = drop_absent_targets(config);
    EXPECT_EQ(dropped.size(), before - config.lora->targets.size());
    return config.lora->targets;
  };
  EXPECT_EQ(kept({"q_proj", "absent", "v_proj"}), (Names{"q_proj", "v_proj"}));
  EXPECT_EQ(kept({"absent", "missing"}), (Names{"absent", "missing"})) << "to be refused";
  EXPECT_EQ(kept({"q_proj", "lm_head"}), (Names{"q_proj", "lm_head"})) << "to be refused";
  EXPECT_EQ(kept({"c_attn", "c_proj"}, "gpt2"), (Names{"c_attn", "c_proj"}));
  EXPECT_EQ(kept({"q_proj", "qkv_proj", "o_proj"}, "phi3"), (Names{"qkv_proj", "o_proj"}));
  EXPECT_EQ(kept({"all-linear"}), Names{"all-linear"});
}

TEST(Lora, OptionsOutOfRangeAreRefused) {
  const auto error = [](const Lora& lora) {
    ModelConfig config;
    config.lora = lora;
    return test::error_of([&] { config.resolved(); });
  };
  EXPECT_NE(error({.rank = 0}).find("rank is 0"), std::string::npos);
  EXPECT_NE(error({.alpha = 0}).find("alpha is 0"), std::string::npos);
  EXPECT_NE(error({.dropout = 0.1}).find("no dropout"), std::string::npos);
}

TEST(Lora, Scaling) {
  EXPECT_DOUBLE_EQ((Lora{.rank = 16, .alpha = 8}).scaling(), 0.5);
  EXPECT_DOUBLE_EQ((Lora{.rank = 16, .alpha = 8, .rslora = true}).scaling(), 2);
}

Lora parsed(const std::string& more) {
  const auto json = parse_json_object(
      R"({"r": 4, "lora_alpha": 6, "target_modules": ["v_proj", "q_proj"])" + more + "}", "a.json");
  return parse_adapter_config(ConfigKeys(json, "a.json"));
}

TEST(AdapterConfig, IsPefts) {
  const auto lora = parsed(R"(, "use_rslora": true, "rank_pattern": {}, "modules_to_save": null,
      "init_lora_weights": "gaussian", "bias": "none", "lora_dropout": 0.05)");
  EXPECT_EQ(lora.rank, 4);
  EXPECT_EQ(lora.alpha, 6);
  EXPECT_TRUE(lora.rslora);
  EXPECT_EQ(lora.init, LoraInit::gaussian);
  EXPECT_EQ(lora.dropout, 0);  // what is trained from here has none
  EXPECT_EQ(lora.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  const auto again = to_adapter_config(lora);
  const auto text = again.dump();
  EXPECT_EQ(to_adapter_config(
                parse_adapter_config(ConfigKeys(parse_json_object(text, "again"), "again"))),
            again);
}

TEST(AdapterConfig, VariantsAreRefusedByKey) {
  for (const auto* key :
       {R"("use_dora": true)", R"("rank_pattern": {"q_proj": 8})", R"("bias": "all")",
        R"("modules_to_save": ["lm_head"])", R"("init_lora_weights": "pissa")",
        R"("peft_type": "IA3")", R"("layers_to_transform": [1])", R"("lora_bias": true)",
        R"("kasa_config": {"beta": 1e-4})", R"("velora_config": {"num_groups": 4})"}) {
    const std::string text = key;
    const auto name = text.substr(1, text.find('"', 1) - 1);
    const auto error = test::error_of([&] { parsed(", " + text); });
    EXPECT_TRUE(error.starts_with("a.json: " + name + " is ")) << error;
  }
}

TEST(AdapterConfig, IsPartOfACheckpointsModel) {
  const auto config = config_with({"q_proj", "v_proj"});
  const auto text = to_config_json(config);
  EXPECT_EQ(to_config_json(parse_config_json(text, "manifest")), text);
  EXPECT_EQ(to_config_json(config.base(), "", text), to_config_json(config.base()));
}

/// PEFT's kaiming_uniform_(a=sqrt(5)): uniform in +-1 / sqrt(in). Any cut draws the same values.
TEST(FillUniform, IsUniformAndTheSameInEveryCut) {
  std::vector<float> all(10'000);
  fill_uniform(all.data(), 0, std::ssize(all), 3, "a", 0.25F);
  const auto [least, greatest] = std::ranges::minmax(all);
  EXPECT_GT(least, -0.25F);
  EXPECT_LT(least, -0.249F);
  EXPECT_LT(greatest, 0.25F);
  EXPECT_GT(greatest, 0.249F);
  double sum = 0, squares = 0;
  for (const double x : all) sum += x, squares += x * x;
  EXPECT_NEAR(sum / 1e4, 0, 0.005);
  EXPECT_NEAR(squares / 1e4, 0.25 * 0.25 / 3, 0.001);
  std::vector<float> part(77);
  fill_uniform(part.data(), 1001, std::ssize(part), 3, "a", 0.25F);
  EXPECT_TRUE(std::ranges::equal(part, std::span(all).subspan(1001, 77)));
}

}  // namespace
}  // namespace llamesh::model
