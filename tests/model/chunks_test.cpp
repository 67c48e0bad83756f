#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "model/causal_lm.hpp"
#include "model/local_weights.hpp"

// A model whose layers are computed in chunks, with several micro-batches between their passes.

namespace llamesh::model {
namespace {

constexpr std::int64_t batch_size = 2, sequence = 11, hidden = 24;
constexpr int micro_batches = 3;

ModelConfig config_of(const std::string& family) {
  ModelConfig c;
  c.family = family;
  c.hidden_size = hidden;
  c.intermediate_size = 40;
  c.num_hidden_layers = 4;
  c.num_attention_heads = c.num_key_value_heads = 4;
  c.vocab_size = 53;
  if (family == "gpt2") c.max_position_embeddings = 64;
  c.tie_word_embeddings = family == "gpt2";
  if (family == "gemma3_text")
    c.layer_types = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  if (family == "gemma3_text") c.sliding_window = 5;
  if (family.starts_with("mixtral")) {
    c.family = "mixtral";
    c.num_experts = 4;
    c.num_experts_per_tok = 2;
    c.output_router_logits = family == "mixtral, balanced";
    c.router_aux_loss_coef = 5;
  }
  return c.resolved();
}

/// Micro-batches with random tokens, some of whose targets are ignored.
class Batches {
 public:
  Batches() : numbers_(std::int64_t{2} * micro_batches * numel * 4) {
    std::mt19937 random(3);
    for (int i = 0; i < micro_batches; ++i) {
      for (auto& t : (*this)[i].tokens.span<std::int32_t>())
        t = static_cast<std::int32_t>(random() % 53);
      for (auto& t : (*this)[i].targets.span<std::int32_t>())
        t = random() % 5 == 0 ? -1 : static_cast<std::int32_t>(random() % 53);
    }
  }
  Batch operator[](int i) const { return {numbers(2 * i), numbers(2 * i + 1)}; }

 private:
  static constexpr std::int64_t numel = batch_size * sequence;
  Tensor numbers(int i) const {
    return numbers_.tensor(DType::i32, {batch_size, sequence}, i * numel * 4);
  }
  device::Buffer numbers_;
};

struct Result {
  double loss = 0, validation = 0;
  std::vector<float> gradients;
};

/// A model with weights, whose passes of a step the caller runs.
struct Model {
  Model(const ModelConfig& config, const MemoryOptions& memory,
        const std::vector<LayerRange>& ranges = {})
      : table(parameter_table(config)),
        weights(table),
        model(config, table, batch_size, sequence, memory, DType::f32, one_rank(), Purpose::train,
              one_rank_of_experts(), {.in_flight = micro_batches}, whole_sequences(), ranges),
        chunks(static_cast<int>(ranges.size())),
        stream(batch_size * sequence * hidden * 4),
        between(stream.tensor(DType::f32, {batch_size * sequence, hidden})) {
    weights.initialize(7, 0.2F);
    model.begin_step(micro_batches);
  }
  void forward(int i) {
    for (int c = 0; c < chunks; ++c)
      model.forward(weights, batches[i], {.chunk = c, .micro_batch = i}, between, between);
  }
  void backward(int i) {
    for (int c = chunks; c-- > 0;)
      model.backward(weights, batches[i], {.chunk = c, .micro_batch = i}, between, 0.5F);
  }
  Result result() {
    Result all{model.take_loss(), 0, {}};
    for (int c = 0; c < chunks; ++c)
      model.evaluate(weights, batches[0], {.chunk = c, .micro_batch = 0}, between, between);
    if (chunks == 0) model.evaluate(weights, batches[0]);
    all.validation = model.take_loss();
    const auto g = weights.all_gradients().span<float>();
    all.gradients.assign(g.begin(), g.end());
    return all;
  }

  Batches batches;
  ParameterTable table;
  test::LocalWeights weights;
  CausalLM model;
  int chunks;
  device::Buffer stream;
  Tensor between;  ///< residual stream from chunk to chunk, or its gradient
};

Result of_whole(const ModelConfig& config) {
  Model m(config, {});
  for (int i = 0; i < micro_batches; ++i) m.model.train(m.weights, m.batches[i], 0.5F);
  return m.result();
}

void expect_near(const Result& seen, const Result& expected) {
  EXPECT_NEAR(seen.loss, expected.loss, 1e-6 * expected.loss);
  EXPECT_NEAR(seen.validation, expected.validation, 1e-6 * expected.validation);
  for (std::size_t i = 0; i < seen.gradients.size(); ++i)
    ASSERT_NEAR(seen.gradients[i], expected.gradients[i],
                1e-5 + 1e-4 * std::abs(expected.gradients[i]))
        << "element " << i;
}

class Chunks
    : public testing::TestWithParam<std::tuple<const char*, ActivationCheckpointing, int>> {};

TEST_P(Chunks, GiveTheGradientsOfTheWholeModel) {
  const auto [family, checkpointing, full_layers] = GetParam();
  const auto config = config_of(family);
  const auto expected = of_whole(config);
  for (const auto& bounds :
       {std::vector<std::size_t>{0, 2, 4}, {0, 1, 4}, {0, 1, 2, 3, 4}, {0, 4}}) {
    std::vector<LayerRange> all_in_flight, two_in_flight;
    for (std::size_t c = 0; c + 1 < bounds.size(); ++c) {
      all_in_flight.push_back({bounds[c], bounds[c + 1], micro_batches});
      two_in_flight.push_back({bounds[c], bounds[c + 1], 2});
    }
    const MemoryOptions memory{checkpointing, 7, full_layers};
    Model first_all_forward(config, memory, all_in_flight);
    for (int i = 0; i < micro_batches; ++i) first_all_forward.forward(i);
    for (int i = 0; i < micro_batches; ++i) first_all_forward.backward(i);
    const auto seen = first_all_forward.result();
    expect_near(seen, expected);

    Model alternating(config, memory, two_in_flight);
    auto with_offload = memory;
    with_offload.activation_offload = true;
    Model offloaded(config, with_offload, two_in_flight);
    for (auto* model : {&alternating, &offloaded}) {
      model->forward(0);
      for (int i = 0; i < micro_batches; ++i) {
        if (i + 1 < micro_batches) model->forward(i + 1);
        model->backward(i);
      }
      const auto again = model->result();
      EXPECT_EQ(again.loss, seen.loss);
      EXPECT_EQ(again.gradients, seen.gradients);
    }
  }
}

// As on two pipeline stages: each has some of the layers only.
TEST(ChunksOnTwoStages, GiveTheGradientsOfTheWholeModel) {
  for (const char* family : {"llama", "gpt2", "gemma3_text", "mixtral"})
    for (const auto checkpointing :
         {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
      const auto config = config_of(family);
      const MemoryOptions memory{checkpointing, 7, 0};
      Model first(config, memory, {{0, 3, 1}}), second(config, memory, {{3, 4, 1}});
      for (int i = 0; i < micro_batches; ++i) {
        const auto batch = first.batches[i];
        first.model.forward(first.weights, batch, {0, i}, {}, first.between);
        second.model.forward(first.weights, batch, {0, i}, first.between, {});
        second.model.backward(first.weights, batch, {0, i}, second.between, 0.5F);
        first.model.backward(first.weights, batch, {0, i}, second.between, 0.5F);
      }
      auto seen = first.result();
      seen.loss = second.model.take_loss();
      second.model.evaluate(first.weights, first.batches[0], {0, 0}, first.between, {});
      seen.validation = second.model.take_loss();
      expect_near(seen, of_whole(config));
    }
}

using enum ActivationCheckpointing;
INSTANTIATE_TEST_SUITE_P(Model, Chunks,
                         testing::Combine(testing::Values("llama", "gpt2", "gemma3_text", "mixtral",
                                                          "mixtral, balanced"),
                                          testing::Values(none, selective, full),
                                          testing::Values(0, 2)));

}  // namespace
}  // namespace llamesh::model
