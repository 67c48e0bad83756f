#include "model/llama.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "device/device.hpp"
#include "device/memory_meter.hpp"
#include "model/rope_table.hpp"
#include "ops/ops.hpp"

// B batch, T sequence, M = B T tokens, D hidden, E head dim, V vocabulary

namespace llamesh::model {

Llama::Llama(const LlamaConfig& config, const ParameterTable& table, std::int64_t batch,
             std::int64_t sequence, const MemoryOptions& memory, DType dtype)
    : config_(config),
      table_(table),
      batch_(batch),
      sequence_(sequence),
      activations_(config, batch, sequence, memory, dtype),
      rope_(sequence * config.head_dim * size_of(DType::f32)) {
  const Tensor cos_sin = rope_.tensor(DType::f32, {sequence, config.head_dim});
  std::vector<float> table_on_host(static_cast<std::size_t>(cos_sin.numel()));
  rope_table(config, sequence, table_on_host);
  device::upload(stream_, cos_sin, table_on_host.data());
}

BlockContext Llama::context(Weights& weights, const Batch& batch, Pass pass) {
  return {stream_,
          weights,
          config_,
          pass,
          batch_,
          sequence_,
          rope_.tensor(DType::f32, {sequence_, config_.head_dim}),
          batch.document_starts,
          activations_.scratch};
}

void Llama::train(Weights& weights, const Batch& batch, float scale) {
  const device::ScopedAllocation allocation(activations_.buffer.bytes());
  // The root is entered once for both passes, and left when its gradients are complete.
  const Entered entered(weights, table_.root, Pass::backward);
  const BlockContext x = context(weights, batch, Pass::forward);
  const Residual hidden = forward(x, batch.tokens);
  head_backward(x, hidden, batch.targets, scale);
  backward(x, batch.tokens);
  losses_.add(stream_, activations_.scratch.losses);
}

void Llama::evaluate(Weights& weights, const Batch& batch) {
  const device::ScopedAllocation allocation(activations_.buffer.bytes());
  const Entered entered(weights, table_.root, Pass::evaluate);
  const BlockContext x = context(weights, batch, Pass::evaluate);
  head(x, forward(x, batch.tokens), batch.targets);
  losses_.add(stream_, activations_.scratch.losses);
}

void Llama::logits(Weights& weights, const Batch& batch, Tensor logits) {
  const device::ScopedAllocation allocation(activations_.buffer.bytes());
  const Entered entered(weights, table_.root, Pass::evaluate);
  const BlockContext x = context(weights, batch, Pass::evaluate);
  const Residual hidden = forward(x, batch.tokens);
  const Entered norm(weights, table_.norm.module, Pass::evaluate);
  const Entered head(weights, table_.lm_head.module, Pass::evaluate);
  ops::linear(stream_, logits, final_norm(x, hidden), weights.parameter(table_.lm_head.weight));
}

Residual Llama::forward(const BlockContext& x, const Tensor& tokens) {
  Residual hidden{activations_.blocks.front().input, {}};
  {
    const Entered entered(x.weights, table_.embed_tokens.module, x.pass);
    ops::embedding(stream_, hidden.x, tokens, x.weights.parameter(table_.embed_tokens.weight));
  }
  for (std::size_t i = 0; i < table_.layers.size(); ++i)
    hidden = block_forward(x, table_.layers[i], hidden, activations_.blocks[i]);
  return hidden;
}

/// Returns the normed hidden state (M, D) after the last layer. Its module is entered by the
/// caller.
Tensor Llama::final_norm(const BlockContext& x, const Residual& hidden) {
  ops::rms_norm(stream_, x.scratch.normed_last, x.scratch.last_rms, x.scratch.last, hidden.x,
                hidden.delta, x.weights.parameter(table_.norm.weight),
                static_cast<float>(config_.rms_norm_eps));
  return x.scratch.normed_last;
}

/// The losses of all tokens, by way of logits for loss_chunk tokens at a time: the full (M, V)
/// never exists. per_chunk(first, logits) follows on each chunk; where it is empty, logits stay
/// what they are.
template <class PerChunk>
void Llama::chunked_losses(const Tensor& weight, const Tensor& targets, float scale,
                           PerChunk per_chunk) {
  constexpr bool train = !std::is_same_v<PerChunk, std::nullptr_t>;
  const Scratch& s = activations_.scratch;
  const std::int64_t tokens = targets.numel();
  for (std::int64_t first = 0; first < tokens; first += s.logits.rows()) {
    const std::int64_t count = std::min(s.logits.rows(), tokens - first);
    const Tensor logits = s.logits.slice_rows(0, count);
    ops::linear(stream_, logits, s.normed_last.slice_rows(first, count), weight);
    ops::cross_entropy(stream_, s.losses.slice(first, count), logits, targets.slice(first, count),
                       scale, train ? ops::WithGradient::yes : ops::WithGradient::no);
    if constexpr (train) per_chunk(first, logits);
  }
}

void Llama::head(const BlockContext& x, const Residual& hidden, const Tensor& targets) {
  const Entered norm(x.weights, table_.norm.module, x.pass);
  const Entered head(x.weights, table_.lm_head.module, x.pass);
  final_norm(x, hidden);
  chunked_losses(x.weights.parameter(table_.lm_head.weight), targets, 1.0F, nullptr);
}

/// Forward and backward of final norm and head in one: each chunk of logits becomes its own
/// gradient at once, and from it come those of the head's weight and of the hidden state.
void Llama::head_backward(const BlockContext& x, const Residual& hidden, const Tensor& targets,
                          float scale) {
  const Entered norm(x.weights, table_.norm.module, Pass::backward);
  const Entered head(x.weights, table_.lm_head.module, Pass::backward);
  const Scratch& s = x.scratch;
  final_norm(x, hidden);
  const Tensor w = x.weights.parameter(table_.lm_head.weight);
  GradientSlot dw = x.weights.gradient(table_.lm_head.weight);
  chunked_losses(w, targets, scale, [&](std::int64_t first, const Tensor& d_logits) {
    const std::int64_t count = d_logits.rows();
    ops::linear_backward_input(stream_, s.delta.slice_rows(first, count), d_logits, w,
                               Accumulate::no);
    ops::linear_backward_weight(stream_, dw.tensor, d_logits,
                                s.normed_last.slice_rows(first, count), dw.accumulate);
    dw.accumulate = Accumulate::yes;
  });
  const auto [d_norm, how] = x.weights.gradient(table_.norm.weight);
  ops::rms_norm_backward(stream_, s.d_residual, Accumulate::no, d_norm, how, s.delta, s.last,
                         s.last_rms, x.weights.parameter(table_.norm.weight));
}

void Llama::backward(const BlockContext& x, const Tensor& tokens) {
  for (std::size_t i = table_.layers.size(); i-- > 0;)
    block_backward(x, table_.layers[i], activations_.blocks[i]);

  const Entered entered(x.weights, table_.embed_tokens.module, Pass::backward);
  const auto [d_table, how] = x.weights.gradient(table_.embed_tokens.weight);
  ops::embedding_backward(stream_, d_table, x.scratch.d_residual, tokens, how);
}

}  // namespace llamesh::model
