#include "model/llama.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "device/memory_meter.hpp"
#include "model/embedding_layer.hpp"
#include "model/forward.hpp"
#include "model/norm_layer.hpp"
#include "model/rope_table.hpp"
#include "ops/ops.hpp"

// B batch, T sequence, M = B T tokens, D hidden, E head dim, V vocabulary

namespace llamesh::model {

Llama::Llama(const LlamaConfig& config, const ParameterTable& table, std::int64_t batch,
             std::int64_t sequence, const MemoryOptions& memory, DType dtype,
             TensorParallel& tensor, Purpose purpose)
    : tensor_(tensor),
      config_(config.divided_among(tensor.size())),
      table_(table),
      batch_(batch),
      sequence_(sequence),
      activations_(config_, table,
                   {batch, sequence, tensor.residual({batch * sequence, config.hidden_size}),
                    tensor.size(), dtype, purpose},
                   memory),
      rope_(upload_rope_table(stream_, config, sequence)) {}

BlockContext Llama::context(Weights& weights, const Batch& batch, Pass pass) {
  return {.stream = stream_,
          .weights = weights,
          .tensor = tensor_,
          .config = config_,
          .pass = pass,
          .batch = batch_,
          .sequence = sequence_,
          .cos_sin = rope_.tensor(DType::f32, {sequence_, config_.head_dim}),
          .document_starts = batch.document_starts,
          .delta = activations_.delta,
          .d_residual = activations_.d_residual,
          .row_sums = activations_.row_sums};
}

void Llama::train(Weights& weights, const Batch& batch, float scale) {
  expects(activations_.d_residual.data() != nullptr,
          "a Llama that was planned without a backward pass is trained");
  const device::ScopedAllocation allocation(activations_.buffer.bytes(),
                                            device::MemoryUse::activations);
  // The root is entered once for both passes, and left when its gradients are complete.
  const Entered entered(weights, table_.root, Pass::backward);
  const BlockContext x = context(weights, batch, Pass::forward);
  const Residual hidden = forward(x, table_, activations_, batch.tokens);
  head_backward(x, hidden, batch.targets, scale);
  backward(x, batch.tokens);
  losses_.add(stream_, activations_.losses);
}

void Llama::evaluate(Weights& weights, const Batch& batch) {
  const device::ScopedAllocation allocation(activations_.buffer.bytes(),
                                            device::MemoryUse::activations);
  const Entered entered(weights, table_.root, Pass::evaluate);
  const BlockContext x = context(weights, batch, Pass::evaluate);
  head(x, forward(x, table_, activations_, batch.tokens), batch.targets);
  losses_.add(stream_, activations_.losses);
}

void Llama::logits(Weights& weights, const Batch& batch, Tensor logits) {
  const device::ScopedAllocation allocation(activations_.buffer.bytes(),
                                            device::MemoryUse::activations);
  const Entered entered(weights, table_.root, Pass::evaluate);
  const BlockContext x = context(weights, batch, Pass::evaluate);
  const Residual hidden = forward(x, table_, activations_, batch.tokens);
  const Entered norm(weights, table_.norm.module, Pass::evaluate);
  const Entered head(weights, table_.lm_head.module, Pass::evaluate);
  linear(stream_, logits, gathered(stream_, tensor_, final_norm(x, table_, activations_, hidden)),
         weights.parameter(table_.lm_head.weight), Accumulate::no);
}

/// Computes losses (count) for a chunk of logits (count, V), and overwrites these with their
/// gradient if requested.
void Llama::cross_entropy(const BlockContext& x, const Tensor& losses, const Tensor& logits,
                          const Tensor& targets, float scale, ops::WithGradient gradient) {
  if (tensor_.size() == 1)
    return ops::cross_entropy(stream_, losses, logits, targets, scale, gradient);
  const Tensor parts = activations_.loss_parts.slice(0, tensor_.size() * logits.rows() * 3)
                           .reshape({tensor_.size(), logits.rows(), 3});
  const Tensor mine = parts.slice(tensor_.rank() * logits.rows() * 3, logits.rows() * 3)
                          .reshape({logits.rows(), 3});
  ops::cross_entropy_part(stream_, mine, logits, targets, first_class(x));
  stream_.wait(tensor_.all_gather(parts, mine));
  ops::cross_entropy_from_parts(stream_, losses, logits, parts, targets, first_class(x), scale,
                                gradient);
}

/// Computes all token losses with logits for loss_chunk tokens at a time, so the full (M, V) never
/// exists. Calls per_chunk(first, logits) after each chunk; if it is null, logits are kept.
template <class PerChunk>
void Llama::chunked_losses(const BlockContext& x, const ColumnBlocks& normed, const Tensor& targets,
                           float scale, PerChunk per_chunk) {
  constexpr bool train = !std::is_same_v<PerChunk, std::nullptr_t>;
  const Activations& a = activations_;
  const Tensor weight = x.weights.parameter(table_.lm_head.weight);
  const std::int64_t tokens = targets.numel();
  for (std::int64_t first = 0; first < tokens; first += a.logits.rows()) {
    const std::int64_t count = std::min(a.logits.rows(), tokens - first);
    const Tensor logits = a.logits.slice_rows(0, count);
    linear(stream_, logits, normed.slice_rows(first, count), weight, Accumulate::no);
    cross_entropy(x, a.losses.slice(first, count), logits, targets.slice(first, count), scale,
                  train ? ops::WithGradient::yes : ops::WithGradient::no);
    if constexpr (train) per_chunk(first, logits);
  }
}

void Llama::head(const BlockContext& x, const Residual& hidden, const Tensor& targets) {
  const Entered norm(x.weights, table_.norm.module, x.pass);
  const Entered head(x.weights, table_.lm_head.module, x.pass);
  const ColumnBlocks normed =
      gathered(stream_, tensor_, final_norm(x, table_, activations_, hidden));
  chunked_losses(x, normed, targets, 1.0F, nullptr);
}

/// Fuses forward and backward through final norm and head: each chunk of logits turns into its own
/// gradient at once, which gives the gradients for the head's weight and the hidden state.
void Llama::head_backward(const BlockContext& x, const Residual& hidden, const Tensor& targets,
                          float scale) {
  const Entered norm(x.weights, table_.norm.module, Pass::backward);
  const Entered head(x.weights, table_.lm_head.module, Pass::backward);
  const Activations& a = activations_;
  const ColumnBlocks normed = gathered(stream_, tensor_, final_norm(x, table_, a, hidden));
  const ColumnBlocks d_normed = tensor_.summand(x.delta);
  const Tensor w = x.weights.parameter(table_.lm_head.weight);
  GradientSlot dw = x.weights.gradient(table_.lm_head.weight);
  chunked_losses(x, normed, targets, scale, [&](std::int64_t first, const Tensor& d_logits) {
    const std::int64_t count = d_logits.rows();
    linear_backward_input(stream_, d_normed.slice_rows(first, count), d_logits, w, Accumulate::no);
    linear_backward_weight(stream_, dw.tensor, d_logits, normed.slice_rows(first, count),
                           dw.accumulate);
    dw.accumulate = Accumulate::yes;
  });
  stream_.wait(tensor_.reduce(x.delta));
  const auto [d_norm, how] = x.weights.gradient(table_.norm.weight);
  rms_norm_backward(x, {.x = a.last,
                        .w = x.weights.parameter(table_.norm.weight),
                        .inverse_rms = a.last_rms,
                        .dy = x.delta,
                        .dx = x.d_residual,
                        .accumulate_dx = Accumulate::no,
                        .dw = d_norm,
                        .accumulate_dw = how});
}

void Llama::backward(const BlockContext& x, const Tensor& tokens) {
  for (std::size_t i = activations_.blocks.size(); i-- > 0;) {
    if (activations_.offload) activations_.offload->before_backward(stream_, i);
    activations_.blocks[i]->backward(x);
  }

  const Entered entered(x.weights, table_.embed_tokens.module, Pass::backward);
  embed_backward(x, table_.embed_tokens, tokens);
}

}  // namespace llamesh::model
