#include "plan/kernel_rates.hpp"

#include <gtest/gtest.h>

#include "support.hpp"

namespace llamesh::plan {
namespace {

train::Inputs measured_inputs(const std::string& family, DType dtype) {
  train::Inputs in;
  in.model.family = family;
  in.model.hidden_size = 64;
  in.model.intermediate_size = 96;
  in.model.num_hidden_layers = 2;
  in.model.num_attention_heads = 4;
  in.model.max_position_embeddings = family == "gpt2" ? 32 : 0;
  in.model.tie_word_embeddings = family == "gpt2";
  in.model.num_experts = family == "mixtral" ? 4 : 0;
  in.model.num_experts_per_tok = family == "mixtral" ? 2 : 0;
  in.precision.parameters = dtype;
  in.data.format = data::Format::random;
  in.data.sequence_length = 32;
  in.train.threads = 1;
  return in;
}

TEST(KernelRates, TheStepOfEachFamilyHasTheKernelsOfItsPlan) {
  for (const char* family : {"llama", "qwen3", "gpt2", "mixtral"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(family) + ' ' + std::string(name_of(dtype)));
      KernelRates rates;
      rates.measure(test::world(), measured_inputs(family, dtype), 0);  // throws unless they agree
      const auto tables = rates.tables(test::world());
      for (const char* kernel :
           {"linear", "linear_backward_weight", "attention", "attention_backward",
            family == std::string("gpt2") ? "layer_norm" : "rms_norm", "cross_entropy", "adamw",
            "sum_of_squares"})
        ASSERT_TRUE(tables.contains(kernel)) << kernel;
      EXPECT_EQ(tables.contains("grouped_linear"), family == std::string("mixtral"));
      for (const auto& [kernel, table] : tables)
        for (const auto& [size, rate] : table.points) {
          EXPECT_GE(size, 1) << kernel;
          EXPECT_GT(rate, 0) << kernel;
        }
      EXPECT_NEAR(tables.at("attention").points.front().first, 32, 1e-9);
    }
}

TEST(KernelRates, RatesOfSeveralModelsAreSortedBySize) {
  KernelRates rates;
  auto in = measured_inputs("llama", DType::f32);
  rates.measure(test::world(), in, 0);
  in.data.sequence_length = 128;
  rates.measure(test::world(), in, 0);
  const auto points = rates.tables(test::world()).at("attention").points;
  ASSERT_EQ(points.size(), 2U);
  EXPECT_NEAR(points[0].first, 32, 1e-9);
  EXPECT_NEAR(points[1].first, 128, 1e-9);
}

}  // namespace
}  // namespace llamesh::plan
