// Tests a rank's share of a model that is divided among several ranks.
#include "app/models/loaded_model.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.hpp"
#include "model/causal_lm.hpp"
#include "model/golden.hpp"
#include "source_file.hpp"
#include "support.hpp"

namespace llamesh::app {
namespace {

std::string folder(const char* name) {
  return test::source_file("tests/model/golden/hf/") + name;
}

comm::ParallelDims divided_among(int ranks) {
  return comm::ParallelDims({{"replicate", 2}, {"tensor", ranks}});
}

/// Returns a parameter's elements.
std::vector<float> values_of(const LoadedModel& model, model::ParameterId id) {
  const Tensor values = model.weights.values(id);
  const auto flat = values.reshape({values.numel()}).span<float>();
  return {flat.begin(), flat.end()};
}

TEST(LoadedModel, TheRanksOfAGroupHoldItTogether) {
  const LoadedModel whole(folder("gqa_8_2"), DType::f32);
  const auto dims = divided_among(2);
  const LoadedModel first(folder("gqa_8_2"), DType::f32, dims, 2);  // in the second group
  const LoadedModel second(folder("gqa_8_2"), DType::f32, dims, 3);
  std::int64_t norms = 0;
  for (std::size_t i = 0; i < whole.table.parameters.size(); ++i) {
    const auto id = static_cast<model::ParameterId>(i);
    const auto all = values_of(whole, id);
    const auto a = values_of(first, id), b = values_of(second, id);
    const auto& shape = whole.table[id].shape;
    if (shape.size() == 1) {
      norms += shape[0];
      EXPECT_EQ(a, all);
      EXPECT_EQ(b, all);
      continue;
    }
    const auto& part = first.shard.table[id].shape;
    std::vector<float> together(all.size());
    for (std::int64_t row = 0; row < shape[0]; ++row)
      for (std::int64_t column = 0; column < shape[1]; ++column) {
        const bool in_first = row < part[0] && column < part[1];
        const auto& from = in_first ? a : b;
        together[static_cast<std::size_t>(row * shape[1] + column)] =
            from[static_cast<std::size_t>(row % part[0] * part[1] + column % part[1])];
      }
    EXPECT_EQ(together, all) << whole.table[id].name;
    EXPECT_EQ(a.size() + b.size(), all.size());
  }
  const auto matrices = whole.table.numel() - norms;
  EXPECT_EQ(first.weights.bytes(), 4 * (matrices / 2 + norms));
}

TEST(LoadedModel, RanksBeyondTheKvHeadsShareThem) {
  const LoadedModel whole(folder("gqa_8_2"), DType::f32);
  const auto& table = whole.table;
  const auto self_attn = table.child(table.layers.front(), "self_attn");
  const auto k_proj = table.weight_module(self_attn, "k_proj").weight;
  const auto all = values_of(whole, k_proj);
  for (int rank = 0; rank < 4; ++rank) {
    const LoadedModel model(folder("gqa_8_2"), DType::f32, divided_among(4), rank);
    const auto half = all.begin() + (rank / 2) * std::ssize(all) / 2;
    EXPECT_EQ(values_of(model, k_proj), std::vector<float>(half, half + std::ssize(all) / 2));
  }
}

TEST(LoadedModel, OneThatCannotBeDividedIsRefused) {
  try {
    const LoadedModel model(folder("gqa_8_2"), DType::f32, divided_among(3), 0);
    ADD_FAILURE() << "8 heads among 3 ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    EXPECT_NE(std::string(error.what()).find("num_attention_heads 8"), std::string::npos)
        << error.what();
  }
}

/// A model beside which the adapters of PEFT's folder lie, and PEFT's results with both.
class Adapted : public testing::TestWithParam<const char*> {
 protected:
  static std::string adapter() { return folder((std::string(GetParam()) + "_adapter").c_str()); }
};

TEST_P(Adapted, LogitsAreThoseOfPeft) {
  LoadedModel model(folder(GetParam()), DType::f32, {}, 0, adapter());
  const auto golden = test::load_golden(GetParam());
  std::vector<std::int32_t> tokens, targets;
  for (const auto& row : golden.tokens()) tokens.insert(tokens.end(), row.begin(), row.end());
  targets = tokens;
  const auto rows = std::ssize(golden.tokens()), length = std::ssize(tokens) / rows;
  model::CausalLM llama(model.config, model.shard.table, rows, length, {}, DType::f32,
                        model::one_rank(), model::Purpose::evaluate);
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(model.config.vocab_size));
  const auto ids = [&](auto& of) { return Tensor(of.data(), DType::i32, {rows, length}); };
  llama.logits(model.weights, {ids(tokens), ids(targets), {}},
               Tensor(logits.data(), DType::f32, {rows * length, model.config.vocab_size}));
  const auto expected = golden["logits"].values;
  ASSERT_EQ(expected.size(), logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    ASSERT_NEAR(logits[i], expected[i], 1e-4) << "element " << i;
}

TEST_P(Adapted, ARanksPartIsMergedToo) {
  const LoadedModel whole(folder(GetParam()), DType::f32, {}, 0, adapter());
  if (whole.config.num_attention_heads % 2 != 0) return;
  const LoadedModel part(folder(GetParam()), DType::f32, divided_among(2), 1, adapter());
  for (std::size_t i = 0; i < whole.table.parameters.size(); ++i) {
    const auto id = static_cast<model::ParameterId>(i);
    const auto all = values_of(whole, id), mine = values_of(part, id);
    std::size_t at = 0;
    for_each_run(whole.table[id].shape, {part.shard.parts[i], 0, std::ssize(mine)},
                 [&](std::int64_t begin, std::int64_t, std::int64_t count) {
                   for (std::int64_t k = 0; k < count; ++k)
                     ASSERT_EQ(mine[at++], all[static_cast<std::size_t>(begin + k)]);
                 });
    EXPECT_EQ(at, mine.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, Adapted,
                         testing::Values("lora", "lora_qwen2", "lora_gpt2", "lora_glm4",
                                         "lora_deepseek", "lora_phi3", "lora_gpt2_attn"),
                         [](const auto& name) { return std::string(name.param); });

TEST(LoadedModel, AnAdapterForAnotherModelIsRefused) {
  const auto error = [](const char* base, const char* adapter) {
    return test::error_of(
        [&] { const LoadedModel model(folder(base), DType::f32, {}, 0, folder(adapter)); });
  };
  const auto shape = error("gqa_8_2", "lora_adapter");
  EXPECT_NE(shape.find("has shape (3, 20) where the model takes (3, 32)"), std::string::npos)
      << shape;
  const auto layer = error("gpt2", "lora_adapter");
  EXPECT_NE(layer.find("matches no linear layer of the model, which has c_attn"), layer.npos)
      << layer;
  EXPECT_NE(error("lora", "gqa_8_2").find("has no adapter_config.json"), std::string::npos);
  const auto alone = test::error_of([] { model_path("hf:" + folder("lora_adapter")); });
  EXPECT_NE(alone.find("add --adapter " + folder("lora_adapter")), std::string::npos) << alone;
}

}  // namespace
}  // namespace llamesh::app
