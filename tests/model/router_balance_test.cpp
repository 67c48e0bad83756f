#include "model/layers/router_balance.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "model/causal_lm.hpp"
#include "model/local_weights.hpp"

namespace llamesh::model {
namespace {

constexpr std::int64_t balance_rows = 2, balance_length = 9;

ModelConfig small_mixtral(std::int64_t per_token) {
  ModelConfig c;
  c.family = "mixtral";
  c.hidden_size = 12;
  c.intermediate_size = 10;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 2;
  c.vocab_size = 19;
  c.num_experts = 5;
  c.num_experts_per_tok = per_token;
  c.initializer_range = 0.3;
  return c.resolved();
}

/// A model with random weights, and a batch for it.
struct BalancedModel {
  explicit BalancedModel(const ModelConfig& config, const MemoryOptions& memory = {},
                         std::int64_t batch_size = balance_rows)
      : model(config),
        table(parameter_table(model)),
        weights(table),
        batch_size(batch_size),
        llama(model, table, batch_size, balance_length, memory, DType::f32) {
    weights.initialize(1, 0.3F);
    for (std::int64_t i = 0; i < balance_rows * balance_length; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i * i % model.vocab_size));
      targets.push_back(static_cast<std::int32_t>((i + 3) * i % model.vocab_size));
    }
  }
  /// Trains on one micro-batch of a step, and returns the sums so far.
  RouterSums train(std::int64_t first_row = 0) {
    const auto of = [&](std::vector<std::int32_t>& ids) {
      return Tensor(ids.data() + first_row * balance_length, DType::i32,
                    {batch_size, balance_length});
    };
    llama.train(weights, {of(tokens), of(targets)}, 1.0F);
    return llama.take_router_sums();
  }
  std::vector<float> gradients() const {
    const auto all = weights.all_gradients().span<float>();
    return {all.begin(), all.end()};
  }

  ModelConfig model;
  ParameterTable table;
  test::LocalWeights weights;
  std::int64_t batch_size;
  CausalLM llama;
  std::vector<std::int32_t> tokens, targets;
};

TEST(RouterSums, LossesByHand) {
  const RouterSums sums{.layers = {0, 4},
                        .experts = 2,
                        .experts_per_tok = 1,
                        .tokens = 4,
                        .counts = {4, 0, 2, 2},
                        .probabilities = {3, 1, 1, 3},
                        .squares = {8, 4}};
  // f = (6, 2) / 8, P = (4, 4) / 8.
  EXPECT_DOUBLE_EQ(load_balancing_loss(sums), 2 * (0.75 * 0.5 + 0.25 * 0.5));
  EXPECT_DOUBLE_EQ(load_balancing_loss(sums.layer(0)), 2 * 0.75);
  EXPECT_DOUBLE_EQ(load_balancing_loss(sums.layer(1)), 2 * (0.5 * 0.25 + 0.5 * 0.75));
  EXPECT_DOUBLE_EQ(z_loss(sums), 12.0 / 8);
  EXPECT_DOUBLE_EQ(z_loss(sums.layer(1)), 1);
  EXPECT_EQ(sums.layer(1).layers, std::vector<std::size_t>{4});
}

/// Recomputation counts no token twice and changes no bit.
TEST(RouterBalance, IsThatOfTheForwardPassUnderEveryMemoryOption) {
  auto config = small_mixtral(2);
  config.output_router_logits = true;
  config.router_aux_loss_coef = 0.5;
  config.router_z_loss_coef = 0.1;
  BalancedModel plain(config);
  const auto sums = plain.train();
  EXPECT_EQ(std::accumulate(sums.counts.begin(), sums.counts.end(), 0.0F),
            3 * balance_rows * balance_length * 2);
  EXPECT_NEAR(std::accumulate(sums.probabilities.begin(), sums.probabilities.end(), 0.0),
              3 * balance_rows * balance_length, 1e-4);
  using enum ActivationCheckpointing;
  for (const auto checkpointing : {none, selective, full})
    for (const bool offload : {false, true}) {
      BalancedModel other(
          config, {.activation_checkpointing = checkpointing, .activation_offload = offload});
      const auto again = other.train();
      EXPECT_EQ(again.counts, sums.counts);
      EXPECT_EQ(again.probabilities, sums.probabilities);
      EXPECT_EQ(again.squares, sums.squares);
      EXPECT_EQ(other.gradients(), plain.gradients());
    }
}

/// With all experts taken, the z-loss is smooth.
TEST(RouterBalance, ZLossGradientsAreFiniteDifferences) {
  const auto gradients_with = [](double coefficient) {
    auto config = small_mixtral(5);
    config.router_z_loss_coef = coefficient;
    BalancedModel model(config);
    model.train();
    return model.gradients();
  };
  constexpr double coefficient = 50;
  const auto with = gradients_with(coefficient), without = gradients_with(0);
  auto config = small_mixtral(5);
  config.router_z_loss_coef = coefficient;
  BalancedModel model(config);
  const auto values = model.weights.all_values().span<float>();
  for (std::size_t p = 0; p < model.table.parameters.size(); ++p) {
    const auto& parameter = model.table.parameters[p];
    if (parameter.role != Role::router) continue;
    const auto master = model.weights.master(static_cast<ParameterId>(p)).span<float>();
    const auto first = master.data() - values.data();
    for (const std::size_t i : {std::size_t{0}, std::size_t{17}, master.size() - 1}) {
      const float before = master[i], h = 0.02F;
      const auto loss_at = [&](float value) {
        master[i] = value;
        const double loss = z_loss(model.train());
        master[i] = before;
        return loss;
      };
      const double slope = (loss_at(before + h) - loss_at(before - h)) / (2 * h);
      const auto at = static_cast<std::size_t>(first) + i;
      EXPECT_NEAR((with[at] - without[at]) / coefficient, slope, 2e-3 * std::abs(slope) + 1e-5)
          << parameter.name << ' ' << i;
    }
  }
}

/// Micro-batches add up to the step: exactly for the z-loss, and for f_e in the first one as if it
/// were all.
TEST(RouterBalance, MicroBatchesAddUpToAStep) {
  auto config = small_mixtral(2);
  config.router_z_loss_coef = 5;
  BalancedModel together(config), in_turns(config, {}, 1);
  const auto sums = together.train();
  in_turns.llama.begin_step(2);
  in_turns.train(0);
  const auto twice = in_turns.train(1);
  EXPECT_EQ(twice.tokens, sums.tokens);
  EXPECT_EQ(twice.counts, sums.counts);
  EXPECT_NEAR(z_loss(twice), z_loss(sums), 1e-6 * z_loss(sums));
  EXPECT_NEAR(load_balancing_loss(twice), load_balancing_loss(sums), 1e-5);
  const auto expected = together.gradients(), seen = in_turns.gradients();
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, std::abs(double{expected[i]} - seen[i]));
  EXPECT_LT(largest, 1e-4);
  EXPECT_EQ(in_turns.train(0).tokens, balance_length) << "the next micro-batch begins a step";
}

TEST(RouterBalance, ADenseModelHasNone) {
  ModelConfig dense;
  dense.hidden_size = 12;
  dense.num_attention_heads = 2;
  dense.vocab_size = 19;
  BalancedModel model(dense.resolved());
  EXPECT_TRUE(model.train().layers.empty());
}

}  // namespace
}  // namespace llamesh::model
