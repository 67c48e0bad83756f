#include "model/decoder.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/philox.hpp"
#include "model/causal_lm.hpp"
#include "model/inference_weights.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

ModelConfig decoder_config(bool tied) {
  ModelConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 72;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 20;
  config.vocab_size = 131;
  config.tie_word_embeddings = tied;
  return config.resolved();
}

/// A model with random weights, a random text, and Llama's logits at each position.
struct Case {
  Case(bool tied, DType type, std::int64_t length)
      : config(decoder_config(tied)),
        table(parameter_table(config)),
        weights(table, type),
        dtype(type) {
    auto stream = device::Stream::calling_thread();
    for (std::size_t i = 0; i < table.parameters.size(); ++i) {
      const auto& parameter = table.parameters[i];
      std::vector<float> values(static_cast<std::size_t>(parameter.numel()), 1.0F);
      if (parameter.initial == Initial::normal)
        fill_normal(values.data(), 0, parameter.numel(), 7, parameter.name, 0.2F);
      ops::copy(stream, weights.values(static_cast<ParameterId>(i)),
                Tensor(values.data(), DType::f32, {parameter.numel()}));
    }
    std::mt19937 random(5);
    for (std::int64_t i = 0; i < length; ++i)
      text.push_back(static_cast<std::int32_t>(random() % 131));
    expected = device::Buffer(length * config.vocab_size * size_of(dtype));
    CausalLM llama(config, table, 1, length, {}, dtype);
    llama.logits(weights, {Tensor(text.data(), DType::i32, {1, length}), {}}, logits());
  }
  Tensor logits() const { return expected.tensor(dtype, {std::ssize(text), config.vocab_size}); }
  /// Returns the largest difference from Llama's logits after `position` tokens.
  double difference(std::span<const float> got, std::int64_t position) const {
    std::vector<float> row(static_cast<std::size_t>(config.vocab_size));
    auto stream = device::Stream::calling_thread();
    ops::copy(stream, Tensor(row.data(), DType::f32, {1, config.vocab_size}),
              logits().slice_rows(position - 1, 1));
    double most = 0;
    for (std::size_t i = 0; i < row.size(); ++i)
      most = std::max(most, static_cast<double>(std::abs(row[i] - got[i])));
    return most;
  }

  ModelConfig config;
  ParameterTable table;
  InferenceWeights weights;
  DType dtype;
  std::vector<std::int32_t> text;
  device::Buffer expected;
};

class DecoderTest : public testing::TestWithParam<DType> {
 protected:
  double tolerance() const { return GetParam() == DType::f32 ? 2e-4 : 0.15; }
};

TEST_P(DecoderTest, TokenByTokenAgreesWithTheWholeModel) {
  for (const bool tied : {false, true}) {
    Case c(tied, GetParam(), 23);
    Decoder decoder(c.config, c.table, c.weights, 23, GetParam());
    for (std::size_t i = 0; i < c.text.size(); ++i) {
      const auto logits = decoder.feed(std::span(c.text).subspan(i, 1));
      EXPECT_LT(c.difference(logits, decoder.position()), tolerance()) << i;
    }
  }
}

TEST_P(DecoderTest, AnyCutOfThePromptAgrees) {
  Case c(false, GetParam(), 41);
  for (const std::size_t first : {1U, 7U, 40U}) {
    Decoder decoder(c.config, c.table, c.weights, 64, GetParam());
    std::size_t at = 0;
    for (std::size_t count = first; at < c.text.size(); at += count, count = 9) {
      count = std::min(count, c.text.size() - at);
      const auto logits = decoder.feed(std::span(c.text).subspan(at, count));
      EXPECT_LT(c.difference(logits, decoder.position()), tolerance()) << first << " " << at;
    }
  }
}

TEST_P(DecoderTest, LongPromptsGoThroughInChunks) {
  Case c(false, GetParam(), 530);
  Decoder decoder(c.config, c.table, c.weights, 530, GetParam());
  EXPECT_LT(c.difference(decoder.feed(c.text), 530), tolerance());
  EXPECT_EQ(decoder.position(), 530);
  EXPECT_THROW(decoder.feed(std::span(c.text).first(1)), Error);
}

TEST_P(DecoderTest, GoesOnBehindAnEarlierPosition) {
  Case c(false, GetParam(), 23);
  Decoder decoder(c.config, c.table, c.weights, 30, GetParam());
  const std::span text(c.text);
  decoder.feed(text.first(9));
  const std::vector<std::int32_t> other(15, 3);
  decoder.feed(other);
  decoder.rewind(9);
  EXPECT_EQ(decoder.position(), 9);
  EXPECT_LT(c.difference(decoder.feed(text.subspan(9)), 23), tolerance());
  decoder.rewind(0);
  EXPECT_LT(c.difference(decoder.feed(text), 23), tolerance());
  EXPECT_THROW(decoder.rewind(24), std::exception);
}

INSTANTIATE_TEST_SUITE_P(Types, DecoderTest, testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

}  // namespace
}  // namespace llamesh::model
