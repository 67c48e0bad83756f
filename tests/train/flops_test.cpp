#include "train/engine/flops.hpp"

#include <gtest/gtest.h>

namespace llamesh::train {
namespace {

/// Llama 2 7B: 6738415616 parameters, including 131072000 in the embedding.
TEST(Flops, OfLlama27B) {
  model::ModelConfig c;
  c.hidden_size = 4096;
  c.intermediate_size = 11008;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.vocab_size = 32000;
  c = c.resolved();
  const auto table = model::parameter_table(c);
  EXPECT_EQ(table.numel(), 6738415616);
  EXPECT_EQ(flops_per_token(c, table, 4096), 6.0 * 6607343616 + 12.0 * 32 * 4096 * 4096);
  EXPECT_EQ(causal_flops_per_token(c, table, 4096), 6.0 * 6607343616 + 6.0 * 32 * 4096 * 4096);
}

/// A window of W in a row of T counts W (2 - W / T) keys per query, in the layers that have it.
TEST(Flops, CountTheWindow) {
  model::ModelConfig c;
  c.family = "qwen2";
  c.hidden_size = 48;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 6;
  c.sliding_window = 25;
  c.max_window_layers = 1;
  c = c.resolved();
  const auto table = model::parameter_table(c);
  const auto n = static_cast<double>(table.matmul_numel());
  EXPECT_EQ(flops_per_token(c, table, 100), 6 * n + 12.0 * 48 * (100 + 2 * 25 * 1.75));
  EXPECT_EQ(flops_per_token(c, table, 25), 6 * n + 12.0 * 48 * (3 * 25));
}

/// Grouped-query attention costs as much as full attention, and heads * head_dim counts, not the
/// hidden size.
TEST(Flops, CountTheQueryHeads) {
  model::ModelConfig c;
  c.hidden_size = 20;
  c.intermediate_size = 36;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 6;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.vocab_size = 50;
  c = c.resolved();
  const auto table = model::parameter_table(c);
  const double attention_weights = 20 * (48 + 16 + 16) + 48 * 20;
  const double layer = attention_weights + 3 * 20 * 36 + 2 * 20;
  const double n = 3 * layer + 20 + 50 * 20;
  EXPECT_EQ(flops_per_token(c, table, 10), 6 * n + 12.0 * 3 * 48 * 10);
  EXPECT_EQ(causal_flops_per_token(c, table, 10), 6 * n + 6.0 * 3 * 48 * 10);
}

/// A tied embedding takes part in the head's product, so tying changes nothing.
TEST(Flops, AreTheSameWithATiedHead) {
  model::ModelConfig c = model::ModelConfig().resolved();
  const double untied = flops_per_token(c, model::parameter_table(c), 64);
  c.tie_word_embeddings = true;
  EXPECT_EQ(flops_per_token(c, model::parameter_table(c), 64), untied);
}

}  // namespace
}  // namespace llamesh::train
