#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "model/causal_lm.hpp"
#include "model/local_weights.hpp"
#include "support.hpp"

namespace llamesh::model {
namespace {

using PatternNames = std::vector<std::string>;

ModelConfig frozen_test_config(const std::string& family, bool tied = false) {
  ModelConfig c;
  c.family = family;
  c.hidden_size = 24;
  c.intermediate_size = family == "gpt2" ? 96 : 40;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  if (family == "gpt2")
    c.max_position_embeddings = 16;
  else
    c.num_key_value_heads = 2;
  c.vocab_size = 53;
  c.tie_word_embeddings = tied || family == "gpt2";
  if (family == "mixtral") {
    c.num_experts = 4;
    c.num_experts_per_tok = 2;
  }
  return c.resolved();
}

ParameterTable frozen_table(const ModelConfig& config, const PatternNames& freeze,
                            const PatternNames& only = {}) {
  auto table = parameter_table(config);
  freeze_parameters(table, config, {freeze, only});
  return table;
}

/// Returns the names of the parameters that `freeze` and `only` leave to train.
PatternNames trained(const ModelConfig& config, const PatternNames& freeze,
                     const PatternNames& only = {}) {
  PatternNames names;
  for (const auto& parameter : frozen_table(config, freeze, only).parameters)
    if (!parameter.frozen) names.push_back(parameter.name);
  return names;
}

TEST(FreezeParameters, PatternsNameWeightsAndModules) {
  const auto config = frozen_test_config("llama");
  EXPECT_EQ(trained(config, {"model"}), PatternNames{"lm_head.weight"});
  EXPECT_EQ(trained(config, {"model.layers.*", "lm_head", "model.embed_tokens.weight"}),
            PatternNames{"model.norm.weight"});
  EXPECT_EQ(trained(config, {"model.layers.[1-9]"}, {"model.layers.*.mlp.up_proj"}),
            PatternNames{"model.layers.0.mlp.up_proj.weight"});
  EXPECT_EQ(trained(config, {}, {"*layernorm"}).size(), 4U);
  EXPECT_EQ(trained(config, {}).size(), parameter_table(config).parameters.size());
}

TEST(FreezeParameters, TensorsOfAFolderNameTheParametersThatTheyHold) {
  const auto experts = trained(frozen_test_config("mixtral"), {},
                               {"model.layers.*.block_sparse_moe.experts.*.w1.weight"});
  EXPECT_EQ(experts, (PatternNames{"model.layers.0.block_sparse_moe.experts.w1",
                                   "model.layers.1.block_sparse_moe.experts.w1"}));
  const auto fused =
      trained(frozen_test_config("gpt2"), {}, {"transformer.h.0.attn.c_attn.weight"});
  EXPECT_EQ(fused.size(), 3U);  // q, k and v
}

TEST(FreezeParameters, RefusesWhatItCannotFreeze) {
  const auto llama = frozen_test_config("llama"), tied = frozen_test_config("llama", true);
  const auto error = [](const ModelConfig& config, const PatternNames& freeze,
                        const PatternNames& only = {}) {
    return test::error_of([&] { frozen_table(config, freeze, only); });
  };
  EXPECT_EQ(error(llama, {"model.layers.*.mlp.up_prj.weight"}),
            "train.freeze: the model has no weight or module 'model.layers.*.mlp.up_prj.weight'; "
            "did you mean 'model.layers.*.mlp.up_proj'?");
  EXPECT_EQ(error(llama, {}, {"model.layers.7"}),
            "train.only: the model has no weight or module 'model.layers.7'; did you mean "
            "'model.layers.*'?");
  EXPECT_EQ(error(llama, {"*"}),
            "train.freeze and train.only freeze all 21 parameters of the model, and nothing is "
            "left to train; name fewer");
  EXPECT_EQ(error(tied, {"model.embed_tokens"}),
            "train.freeze and train.only freeze model.embed_tokens.weight, but not lm_head.weight, "
            "and these weights are tied; name both or neither");
  EXPECT_EQ(error(tied, {"lm_head"}),
            "train.freeze and train.only freeze lm_head.weight, but not model.embed_tokens.weight, "
            "and these weights are tied; name both or neither");
  EXPECT_EQ(error(frozen_test_config("mixtral"), {"model.layers.0.block_sparse_moe.experts.2"}),
            "train.freeze: 'model.layers.0.block_sparse_moe.experts.2' names 1 of the 4 tensors "
            "that are one parameter, model.layers.0.block_sparse_moe.experts.w1; name all of them, "
            "with *");
  EXPECT_EQ(trained(tied, {"lm_head", "model.embed_tokens"}).size(),
            parameter_table(tied).parameters.size() - 1);
}

/// A family, and the patterns that freeze some parameters of each kind.
struct FrozenCase {
  std::string family;
  PatternNames freeze;

  friend void PrintTo(const FrozenCase& c, std::ostream* out) {
    *out << c.family;
    for (const auto& pattern : c.freeze) *out << ' ' << pattern;
  }
};

class FrozenGradients : public testing::TestWithParam<FrozenCase> {};

/// Returns each parameter's gradients from one backward pass; empty if it is frozen.
std::vector<std::vector<float>> unfrozen_gradients(const ModelConfig& config,
                                                   const ParameterTable& table) {
  constexpr std::int64_t batch_size = 2, sequence = 7;
  test::LocalWeights weights(table);
  weights.initialize(7, 0.2F);
  CausalLM model(config, table, batch_size, sequence, {}, DType::f32);
  const device::Buffer numbers(2 * batch_size * sequence * 4);
  const auto all = numbers.tensor(DType::i32, {2 * batch_size, sequence});
  for (std::int32_t i = 0; auto& number : all.span<std::int32_t>()) number = 17 * i++ % 53;
  model.train(weights, {all.slice_rows(0, batch_size), all.slice_rows(batch_size, batch_size)}, 1);
  std::vector<std::vector<float>> gradients;
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto gradient = weights.gradient_of(static_cast<ParameterId>(i)).span<float>();
    gradients.emplace_back(gradient.begin(), gradient.end());
    if (table.parameters[i].frozen) gradients.back().clear();
  }
  return gradients;
}

TEST_P(FrozenGradients, OfTheOtherParametersAreUnchanged) {
  const auto config = frozen_test_config(GetParam().family);
  const auto table = frozen_table(config, GetParam().freeze);
  const auto all = unfrozen_gradients(config, parameter_table(config)),
             some = unfrozen_gradients(config, table);
  for (std::size_t p = 0; p < all.size(); ++p) {
    ASSERT_EQ(some[p].empty(), table.parameters[p].frozen);
    for (std::size_t i = 0; i < some[p].size(); ++i)
      ASSERT_NEAR(some[p][i], all[p][i], 1e-5 * (1 + std::abs(all[p][i])))
          << table.parameters[p].name << ' ' << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, FrozenGradients,
    testing::Values(
        FrozenCase{"llama", {"*.k_proj", "*.gate_proj", "*post_attention_layernorm"}},
        FrozenCase{"llama", {"model.embed_tokens", "lm_head", "*.q_proj", "*.down_proj"}},
        FrozenCase{"llama", {"model.embed_tokens", "model.layers.0", "model.norm"}},
        FrozenCase{"llama", {"model"}}, FrozenCase{"qwen2", {"*.k_proj.bias", "*.v_proj.weight"}},
        FrozenCase{"qwen3", {"*.q_norm", "*.o_proj"}},
        FrozenCase{"gpt2", {"transformer.wpe", "*.ln_1.weight", "*.ln_2.bias", "*.bias"}},
        FrozenCase{"gpt2", {"transformer.wte", "lm_head", "*.c_attn"}},
        FrozenCase{"mixtral", {"*.gate", "*.experts.*.w1.weight"}},
        FrozenCase{"mixtral", {"*.experts.*.w2.weight", "*.experts.*.w3.weight"}}));

}  // namespace
}  // namespace llamesh::model
