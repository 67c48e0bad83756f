#include "model/decoder.hpp"

#include <algorithm>

#include "device/device.hpp"
#include "model/linear_layer.hpp"
#include "model/planner.hpp"
#include "model/rope_table.hpp"
#include "ops/ops.hpp"

// M tokens at hand, D hidden, H heads, K kv heads, E head dim, F intermediate, V vocabulary

namespace llamesh::model {
namespace {

constexpr std::int64_t largest_chunk = 512;  // of a prompt's tokens that go through together

}  // namespace

Decoder::Decoder(const LlamaConfig& config, const ParameterTable& table, Weights& weights,
                 std::int64_t positions, DType dtype)
    : config_(config),
      table_(table),
      weights_(weights),
      positions_(positions),
      chunk_(std::min(positions, largest_chunk)),
      dtype_(dtype),
      rope_(positions * config.head_dim * size_of(DType::f32)) {
  const auto plan = [&](Planner cache, Planner outputs) {
    for (std::size_t i = 0; i < table_.layers.size(); ++i)
      for (auto* side : {&keys_, &values_})
        side->push_back(
            cache.take(dtype_, {positions_, config_.num_key_value_heads * config_.head_dim}));
    logits_ = outputs.take(DType::f32, {1, config_.vocab_size});
    last_ = outputs.take(dtype_, {1, config_.hidden_size});
    return std::pair(cache.bytes(), outputs.bytes());
  };
  const auto [cache_bytes, output_bytes] = plan(Planner(nullptr), Planner(nullptr));
  keys_.clear();
  values_.clear();
  cache_ = device::Buffer(cache_bytes);
  outputs_ = device::Buffer(output_bytes);
  plan(Planner(cache_.data()), Planner(outputs_.data()));
  const Tensor cos_sin = rope_.tensor(DType::f32, {positions_, config_.head_dim});
  std::vector<float> table_on_host(static_cast<std::size_t>(cos_sin.numel()));
  rope_table(config_, positions_, table_on_host);
  device::upload(stream_, cos_sin, table_on_host.data());
  logits_on_host_.resize(static_cast<std::size_t>(config_.vocab_size));
  const auto width =
      4 * config_.hidden_size + 3 * config_.intermediate_size +
      (2 * config_.num_attention_heads + 2 * config_.num_key_value_heads) * config_.head_dim;
  const auto statistics = 1 + config_.num_attention_heads;
  space_ = device::Buffer(chunk_ * (width * size_of(dtype_) + 4 * statistics) + 64 * 10);
}

Decoder::Space Decoder::space_for(std::int64_t tokens) const {
  const auto heads = config_.num_attention_heads * config_.head_dim;
  const auto kv = config_.num_key_value_heads * config_.head_dim;
  Planner plan(space_.data());
  Space s;
  s.residual = plan.take(dtype_, {tokens, config_.hidden_size});
  s.delta = plan.take(dtype_, {tokens, config_.hidden_size});
  s.normed = plan.take(dtype_, {tokens, config_.hidden_size});
  s.rms = plan.take(DType::f32, {tokens});
  s.qkv = plan.take(dtype_, {tokens, heads + 2 * kv});
  s.attention = plan.take(dtype_, {tokens, heads});
  s.log_sum_exp = plan.take(DType::f32, {1, config_.num_attention_heads, tokens});
  s.gate_up = plan.take(dtype_, {tokens, 2 * config_.intermediate_size});
  s.swiglu = plan.take(dtype_, {tokens, config_.intermediate_size});
  return s;
}

std::span<const float> Decoder::feed(std::span<const std::int32_t> tokens) {
  expects(!tokens.empty(), "no token is fed");
  validate(position_ + std::ssize(tokens) <= positions_,
           "{} tokens do not fit behind {}: there is room for {}", tokens.size(), position_,
           positions_);
  const Entered root(weights_, table_.root, Pass::evaluate);
  while (!tokens.empty()) {
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(chunk_));
    pass(tokens.first(count));
    tokens = tokens.subspan(count);
  }
  const Entered head(weights_, table_.lm_head.module, Pass::evaluate);
  ops::linear(stream_, logits_, last_, weights_.parameter(table_.lm_head.weight));
  device::download(stream_, logits_on_host_.data(), logits_);
  return logits_on_host_;
}

/// Puts the tokens through all layers and leaves the normed state of the last one.
void Decoder::pass(std::span<const std::int32_t> tokens) {
  const auto count = std::ssize(tokens);
  const Space s = space_for(count);
  // The view does not write.
  const Tensor ids = ids_.reachable(
      stream_, Tensor(const_cast<std::int32_t*>(tokens.data()), DType::i32, {count}));
  {
    const Entered embedding(weights_, table_.embed_tokens.module, Pass::evaluate);
    ops::embedding(stream_, s.residual, ids, weights_.parameter(table_.embed_tokens.weight));
  }
  for (std::size_t i = 0; i < table_.layers.size(); ++i) {
    const auto& layer = table_.layers[i];
    const Entered entered(weights_, layer.layer, Pass::evaluate);
    norm(layer.input_norm, s, i > 0);
    attend(layer, i, s);
    norm(layer.post_attention_norm, s, true);
    const Entered mlp(weights_, layer.mlp, Pass::evaluate);
    linear(stream_, weights_, Pass::evaluate, {layer.gate_proj, layer.up_proj}, s.gate_up,
           s.normed);
    ops::swiglu(stream_, s.swiglu, s.gate_up);
    linear(stream_, weights_, Pass::evaluate, {layer.down_proj}, s.delta, s.swiglu);
  }
  norm(table_.norm, s, true);
  ops::copy(stream_, last_, s.normed.slice_rows(count - 1, 1));
  position_ += count;
}

/// residual += delta; normed = norm(residual).
void Decoder::norm(const Leaf& leaf, const Space& s, bool with_delta) {
  const Entered entered(weights_, leaf.module, Pass::evaluate);
  ops::rms_norm(stream_, s.normed, s.rms, with_delta ? s.residual : Tensor(), s.residual,
                with_delta ? s.delta : Tensor(), weights_.parameter(leaf.weight),
                static_cast<float>(config_.rms_norm_eps));
}

void Decoder::attend(const LayerIds& layer, std::size_t index, const Space& s) {
  const Entered entered(weights_, layer.self_attn, Pass::evaluate);
  const auto count = s.qkv.rows();
  const auto heads = config_.num_attention_heads * config_.head_dim;
  const auto kv = config_.num_key_value_heads * config_.head_dim;
  linear(stream_, weights_, Pass::evaluate, {layer.q_proj, layer.k_proj, layer.v_proj}, s.qkv,
         s.normed);
  const Tensor cos_sin = rope_.tensor(DType::f32, {positions_, config_.head_dim});
  ops::rope(stream_, s.qkv.slice_cols(0, heads + kv), cos_sin.slice_rows(position_, count),
            Tensor(), config_.head_dim, ops::Rotation::forward);
  const Tensor q = s.qkv.slice_cols(0, heads);
  const Tensor k = s.qkv.slice_cols(heads, kv);
  const Tensor v = s.qkv.slice_cols(heads + kv, kv);
  for (std::int64_t i = 0; i < count; ++i) {
    ops::copy(stream_, keys_[index].slice_rows(position_ + i, 1), k.slice_rows(i, 1));
    ops::copy(stream_, values_[index].slice_rows(position_ + i, 1), v.slice_rows(i, 1));
  }
  const ops::AttentionShape shape{1, count, config_.num_attention_heads,
                                  config_.num_key_value_heads, config_.head_dim};
  if (position_ == 0)
    ops::attention(stream_, s.attention, s.log_sum_exp, q, k, v, Tensor(), shape);
  else
    ops::cached_attention(stream_, s.attention, q, keys_[index], values_[index], shape, position_);
  linear(stream_, weights_, Pass::evaluate, {layer.o_proj}, s.delta, s.attention);
}

}  // namespace llamesh::model
