#include "model/layers/activations.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/stream.hpp"
#include "model/layers/activation_offload.hpp"
#include "model/layers/mlp.hpp"
#include "model/layers/transformer_block.hpp"

namespace llamesh::model {
namespace {

using enum ActivationCheckpointing;

// B batch, T sequence, M = B T tokens: a multiple of 16, so that there is no padding
constexpr std::int64_t B = 2, T = 32, M = B * T, layers = 5;

ModelConfig config() {
  ModelConfig c;
  c.hidden_size = 24;
  c.intermediate_size = 40;
  c.num_hidden_layers = layers;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.vocab_size = 32;
  return c.resolved();
}

/// Activations planned for a model on one rank.
struct Planned {
  Planned(const MemoryOptions& memory, DType dtype, Purpose purpose = Purpose::train)
      : activations(model, table, traits, {B, T, {M, 24}, 1, dtype, purpose}, memory) {}
  const TransformerBlock& block(std::size_t i) const {
    return dynamic_cast<const TransformerBlock&>(*activations.whole().blocks[i]);
  }
  ModelConfig model = config();
  ParameterTable table = parameter_table(model);
  ModelTraits traits = traits_of(model);
  Activations activations;
};

Tensor qkv(const TransformerBlock& layer) {
  return layer.attention().tensors().qkv;
}

const Mlp::Tensors& mlp(const TransformerBlock& layer) {
  return dynamic_cast<const Mlp&>(layer.feed_forward()).tensors();
}

Tensor activated(const TransformerBlock& layer) {
  return mlp(layer).activated;
}

std::int64_t planned(ActivationCheckpointing checkpointing, std::int64_t full_layers) {
  return Planned({checkpointing, 1024, full_layers}, DType::bf16).activations.buffer.bytes();
}

/// Tensors per layer, besides its input, that selective checkpointing keeps: norm and attention
/// statistics in fp32; q, k, v, attention's output, middle, gate and up in bf16.
constexpr std::int64_t kept_by_selective = M * (4 * (1 + 4 + 1) + 2 * (48 + 24 + 24 + 80));
/// Tensors that it does not keep: both norm outputs and SwiGLU's.
constexpr std::int64_t cheap = M * 2 * (24 + 24 + 40);

TEST(Activations, EveryLayerButTheLastIsSparedWhatItDoesNotKeep) {
  const auto whole = planned(none, 0);
  EXPECT_EQ(planned(selective, 0), whole - (layers - 1) * cheap);
  EXPECT_EQ(planned(full, 0), whole - (layers - 1) * (cheap + kept_by_selective));
}

TEST(Activations, EachLayerOfFullCheckpointingSparesAsMuch) {
  for (std::int64_t n = 0; n < layers; ++n) {
    EXPECT_EQ(planned(none, n), planned(none, 0) - n * (cheap + kept_by_selective)) << n;
    EXPECT_EQ(planned(selective, n), planned(selective, 0) - n * kept_by_selective) << n;
    EXPECT_EQ(planned(full, n), planned(full, 0)) << n;
  }
  for (const auto rest : {none, selective, full})
    EXPECT_EQ(planned(rest, layers), planned(full, 0));
}

TEST(Activations, KeptTensorsAreNobodyElses) {
  const Planned planned({selective, 1024, 2}, DType::f32);
  const auto& last = planned.block(layers - 1);
  for (std::size_t i = 0; i + 1 < layers; ++i) {
    const auto& layer = planned.block(i);
    SCOPED_TRACE(i);
    EXPECT_EQ(planned.block(i).checkpointing(), i < 2 ? full : selective);
    EXPECT_EQ(qkv(layer).data() == qkv(last).data(), i < 2);
    EXPECT_EQ(mlp(layer).up.data() == mlp(last).up.data(), i < 2);
    EXPECT_EQ(activated(layer).data(), activated(last).data());
    EXPECT_NE(layer.input().data(), last.input().data());
  }
  EXPECT_EQ(planned.block(layers - 1).checkpointing(), none);
}

TEST(Activations, WithoutABackwardPassAllLayersShareTheirTensors) {
  Planned planned({}, DType::f32, Purpose::generate);
  const auto& last = planned.block(layers - 1);
  for (std::size_t i = 0; i + 1 < layers; ++i) {
    EXPECT_EQ(planned.block(i).input().data(), last.input().data()) << i;
    EXPECT_EQ(activated(planned.block(i)).data(), activated(last).data()) << i;
  }
  EXPECT_LT(planned.activations.buffer.bytes(),
            Planned({full, 1024, 0}, DType::f32).activations.buffer.bytes());
  planned.activations.plan({1, 3, {3, 24}, 1, DType::f32, Purpose::generate});
  EXPECT_EQ(qkv(planned.block(0)).rows(), 3);
  EXPECT_THROW(planned.activations.plan({B, 2 * T, {2 * M, 24}, 1, DType::f32, Purpose::generate}),
               std::exception);
}

TEST(Activations, AnEvaluationNeedsTheLossBesidesAndNothingOfABackwardPass) {
  const auto bytes = [](Purpose purpose) {
    return Planned({}, DType::f32, purpose).activations.buffer.bytes();
  };
  // Logits (M, 32), three numbers a token from each rank, losses (M).
  EXPECT_EQ(bytes(Purpose::evaluate), bytes(Purpose::generate) + 4 * M * (32 + 3 + 1));
  EXPECT_LT(bytes(Purpose::evaluate),
            Planned({full, 1024, 0}, DType::f32).activations.buffer.bytes());
}

// Layer 1 is frozen like all below it: its forward pass stores nothing, so layer 2's backward pass
// has nothing to bring back into the slot, which the next micro-batch may already use.
TEST(ActivationOffload, BringsBackOnlyWhatWasStored) {
  constexpr std::size_t kept_layers = 4;
  const device::Buffer slots(kept_layers * 64 * 4);
  std::vector<Tensor> kept;
  for (std::size_t i = 0; i < kept_layers; ++i) {
    kept.push_back(slots.tensor(DType::f32, {64}, static_cast<std::int64_t>(i) * 64 * 4));
    std::ranges::fill(kept.back().span<float>(), 1.0F);
  }
  ActivationOffload offload(kept);
  auto& compute = device::compute_stream();
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (std::size_t i = 0; i < kept_layers; ++i) {
      offload.before_forward(compute, i);
      if (i != 1) offload.after_forward(compute, i);
    }
    compute.record().wait();
    std::ranges::fill(kept[0].span<float>(), 2.0F);
    for (const std::size_t i : {3, 2, 1}) offload.before_backward(compute, i);
    offload.before_backward(compute, 0);
    compute.record().wait();
    EXPECT_EQ(kept[0].span<float>().back(), 1.0F) << "stored, and back";
    EXPECT_EQ(kept[1].span<float>().back(), 1.0F) << "never stored";
  }
}

}  // namespace
}  // namespace llamesh::model
