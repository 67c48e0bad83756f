#include "model/golden.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "model/causal_lm.hpp"
#include "model/decoder.hpp"
#include "model/local_weights.hpp"

// Compares with PyTorch and Hugging Face transformers: tests/model/golden/make_golden.py.

namespace llamesh::model {
namespace {

/// The reference model, loaded into llamesh.
struct Loaded {
  explicit Loaded(const std::string& name)
      : golden(test::load_golden(name)),
        config(test::config_of(golden.config())),
        table(parameter_table(config)),
        weights(table),
        batch_size(static_cast<std::int64_t>(golden.tokens().size())),
        sequence(static_cast<std::int64_t>(golden.tokens().front().size())),
        llama(config, table, batch_size, sequence, {},
              {DType::f32, golden.fp8() ? LinearPrecision::fp8 : LinearPrecision::same}) {
    const auto values = test::parameters_of(golden, "weights/", config, table);
    for (std::size_t p = 0; p < values.size(); ++p)
      std::ranges::copy(values[p],
                        weights.master(static_cast<ParameterId>(p)).span<float>().begin());
    for (const auto& row : golden.tokens()) tokens.insert(tokens.end(), row.begin(), row.end());
    for (const auto& row : golden.targets()) targets.insert(targets.end(), row.begin(), row.end());
    for (const auto& row : golden.document_starts())
      starts.insert(starts.end(), row.begin(), row.end());
    valid = std::count_if(targets.begin(), targets.end(), [](auto t) { return t >= 0; });
  }
  Batch batch() {
    return {Tensor(tokens.data(), DType::i32, {batch_size, sequence}),
            Tensor(targets.data(), DType::i32, {batch_size, sequence}),
            starts.empty() ? Tensor() : Tensor(starts.data(), DType::i32, {batch_size, sequence})};
  }

  test::Golden golden;
  ModelConfig config;
  ParameterTable table;
  test::LocalWeights weights;
  std::int64_t batch_size, sequence, valid = 0;
  CausalLM llama;
  std::vector<std::int32_t> tokens, targets, starts;
};

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, Logits) {
  Loaded l(GetParam());
  std::vector<float> logits(l.tokens.size() * static_cast<std::size_t>(l.config.vocab_size));
  l.llama.logits(l.weights, l.batch(),
                 Tensor(logits.data(), DType::f32,
                        {static_cast<std::int64_t>(l.tokens.size()), l.config.vocab_size}));
  const auto expected = l.golden["logits"].values;
  ASSERT_EQ(expected.size(), logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    ASSERT_NEAR(logits[i], expected[i], 1e-4) << "element " << i;
}

TEST_P(Golden, LossAndGradients) {
  Loaded l(GetParam());
  l.llama.train(l.weights, l.batch(), 1.0F / static_cast<float>(l.valid));
  const double loss = l.llama.take_loss();
  if (l.config.output_router_logits) {
    EXPECT_NEAR(load_balancing_loss(l.llama.take_router_sums()), l.golden.aux_loss(), 1e-5);
  }
  EXPECT_NEAR(loss / static_cast<double>(l.valid), l.golden.loss(), 1e-5);
  const auto gradients = test::parameters_of(l.golden, "gradients/", l.config, l.table);
  for (std::size_t p = 0; p < l.table.parameters.size(); ++p) {
    const auto& name = l.table.parameters[p].name;
    const auto seen = l.weights.gradient_of(static_cast<ParameterId>(p)).span<float>();
    const auto& expected = gradients[p];
    if (l.table.parameters[p].frozen) continue;
    ASSERT_EQ(seen.size(), expected.size());
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      error += std::pow(static_cast<double>(seen[i]) - expected[i], 2);
      size += std::pow(static_cast<double>(expected[i]), 2);
    }
    // Without rotation, the keys' bias shifts all scores of a query alike: its gradient is 0.
    EXPECT_LT(std::sqrt(error), 1e-4 * std::sqrt(size) + 1e-7) << name;
  }
}

/// The models cover all tokens at one expert, and experts without tokens.
TEST(RouterCounts, AreThoseOfTheModels) {
  const auto sums_of = [](const char* name) {
    Loaded l(name);
    l.llama.train(l.weights, l.batch(), 1.0F);
    return l.llama.take_router_sums();
  };
  const auto collapsed = sums_of("mixtral_collapsed");
  EXPECT_EQ(collapsed.counts, (std::vector<float>{24, 0, 0, 24, 0, 0}));
  const auto sparse = sums_of("qwen3_moe_aux");
  EXPECT_EQ(std::accumulate(sparse.counts.begin(), sparse.counts.end(), 0.0F), 2 * 24 * 3);
  EXPECT_GT(std::ranges::count(sparse.counts, 0.0F), 0);
  EXPECT_EQ(sparse.layers, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(sums_of("qwen3_moe_dense").layers, (std::vector<std::size_t>{1, 5}));
}

/// Fed a row in pieces, the decoder has the logits of each piece's last token: the cache honors
/// windows, rotates or looks up later positions, and holds normalized keys.
TEST_P(Golden, DecoderLogits) {
  Loaded l(GetParam());
  if (l.config.lora) return;      // the decoder takes merged weights
  if (l.golden.fp8()) return;     // the decoder does not round them
  if (!l.starts.empty()) return;  // the decoder continues one text
  Decoder decoder(l.config, l.table, l.weights, l.sequence, DType::f32);
  const auto row =
      std::span<const std::int32_t>(l.tokens).first(static_cast<std::size_t>(l.sequence));
  const auto expected = l.golden["logits"].values;
  for (const auto end : {std::size_t{1}, std::size_t{5}, std::size_t{6}, row.size() / 2 + 1,
                         row.size() - 1, row.size()}) {
    const auto fed = static_cast<std::size_t>(decoder.position());
    const auto logits = decoder.feed(row.subspan(fed, end - fed));
    for (std::size_t v = 0; v < logits.size(); ++v)
      ASSERT_NEAR(logits[v], expected[(end - 1) * logits.size() + v], 1e-4)
          << "token " << end << ", logit " << v;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         testing::Values("gqa_8_2", "tied_6_3", "llama3_rope", "packed", "tied_4_2",
                                         "biases", "rope_linear", "rope_yarn", "qwen2",
                                         "qwen2_window", "mistral", "qwen3", "olmo2", "gpt2",
                                         "packed_mistral", "packed_gpt2", "qwen3_switches",
                                         "olmo2_switches", "gpt2_switches", "mixtral", "qwen3_moe",
                                         "mixtral_aux", "mixtral_collapsed", "qwen3_moe_aux",
                                         "qwen3_moe_dense", "lora", "lora_qwen2", "lora_gpt2",
                                         "lora_glm4", "lora_deepseek", "lora_phi3",
                                         "lora_gpt2_attn", "fp8", "fp8_qwen3_moe"),
                         [](const auto& name) { return name.param; });
INSTANTIATE_TEST_SUITE_P(LlamaVariants, Golden, testing::ValuesIn(test::llama_variants),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace llamesh::model
