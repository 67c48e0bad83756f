#include "model/causal_lm.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "device/memory_meter.hpp"
#include "model/forward_pass.hpp"
#include "model/layers/norm.hpp"
#include "ops/ops.hpp"

// B batch, T sequence, M = B T tokens, D hidden, E head dim, V vocabulary

namespace llamesh::model {

CausalLM::CausalLM(const ModelConfig& config, const ParameterTable& table, std::int64_t batch,
                   std::int64_t sequence, const MemoryOptions& memory, const Precision& precision,
                   TensorParallel& tensor, Purpose purpose, ExpertParallel& experts, DataRanks data,
                   ContextParallel& context, const std::vector<LayerRange>& chunks)
    : tensor_(tensor),
      experts_(experts),
      context_(context),
      config_(config),
      table_(table),
      batch_(batch),
      sequence_(sequence),
      traits_(traits_of(config_)),
      activations_(
          config_, table, traits_,
          {batch, sequence, tensor.residual({batch * sequence, config.hidden_size}), tensor.size(),
           precision.dtype, purpose, experts.size(), precision.linear, context.size()},
          memory, chunks),
      rope_(stream_, config_, traits_, context.size() * sequence),
      balance_(config_, table, batch * sequence, std::move(data), tensor.rank() == 0) {
  check_positions(config, context.size() * sequence);
}

BlockContext CausalLM::context(Weights& weights, const Batch& batch, Pass pass) {
  return {.stream = stream_,
          .weights = weights,
          .tensor = tensor_,
          .experts = experts_,
          .context = context_,
          .config = config_,
          .traits = traits_,
          .pass = pass,
          .batch = batch_,
          .sequence = sequence_,
          .positions = context_.positions(sequence_),
          .rope = rope_,
          .document_starts = batch.document_starts,
          .delta = activations_.delta,
          .d_residual = activations_.d_residual,
          .row_sums = activations_.row_sums,
          .adapters = activations_.adapters,
          .fp8 = activations_.fp8 ? &*activations_.fp8 : nullptr};
}

/// `gradient` is the residual stream's.
BlockContext CausalLM::training_context(Weights& weights, const Batch& batch,
                                        const Tensor& gradient) {
  BlockContext ctx = context(weights, batch, Pass::forward);
  ctx.balance = &balance_;
  ctx.d_residual = gradient;
  return ctx;
}

device::ScopedAllocation CausalLM::use_activations() const {
  return {activations_.buffer.bytes(), device::MemoryUse::activations};
}

void CausalLM::train(Weights& weights, const Batch& batch, float scale) {
  expects(activations_.d_residual.data() != nullptr,
          "a model that was planned without a backward pass is trained");
  const auto use = use_activations();
  // The root is entered once for both passes, and left when its gradients are complete.
  const UnshardGuard guard(weights, table_.root, Pass::backward);
  const Place place{.chunk = 0, .micro_batch = balance_.next_micro_batch()};
  forward(weights, batch, place, {}, {});
  backward(weights, batch, place, activations_.d_residual, scale);
}

/// Enters the root's own parameters for a chunk's pass. Of several chunks only those at the ends of
/// the model use them (a tied embedding), so that a backward pass leaves none without gradient.
std::unique_ptr<UnshardGuard> CausalLM::enter_root(Weights& weights, const ChunkPass& chunk,
                                                   Pass pass) const {
  const bool at_an_end = chunk.layers.first == 0 || chunk.layers.last == table_.layers.size();
  if (activations_.chunks() > 1 && !at_an_end) return nullptr;
  return std::make_unique<UnshardGuard>(weights, table_.root, pass);
}

void CausalLM::forward(Weights& weights, const Batch& batch, const Place& place, const Tensor& in,
                       const Tensor& out) {
  auto& chunk = activations_.of(place.chunk, place.micro_batch);
  const auto guard = enter_root(weights, chunk, Pass::forward);
  if (place.chunk == 0) balance_.begin_forward(stream_);
  run_forward(training_context(weights, batch, {}), batch, chunk, in, out);
  balance_.end_layers(stream_, place.micro_batch, chunk.layers.first, chunk.layers.last);
  const bool is_through = std::cmp_equal(place.chunk + 1, activations_.chunks());
  if (is_through) balance_.end_forward(place.micro_batch);
}

/// Leaves the residual stream behind the chunk in `out`, or with the chunk if that is the last one.
void CausalLM::run_forward(const BlockContext& ctx, const Batch& batch, ChunkPass& chunk,
                           const Tensor& in, const Tensor& out) {
  if (activations_.offload) activations_.offload->before_forward(stream_, chunk.first_kept);
  const Tensor input = chunk.blocks.front()->input();
  if (chunk.layers.first == 0)
    embed(ctx, table_, activations_, input, batch.tokens);
  else
    ops::copy(stream_, input, in);
  chunk.hidden = run_layers(ctx, table_, activations_, chunk);
  const Tensor& sum = chunk.layers.last == table_.layers.size() ? chunk.output : out;
  if (!sum) return;
  ops::copy(stream_, sum, chunk.hidden.x);
  ops::add(stream_, sum, chunk.hidden.delta);
  chunk.hidden = {sum, {}};
}

void CausalLM::backward(Weights& weights, const Batch& batch, const Place& place,
                        const Tensor& gradient, float scale) {
  const ChunkPass& chunk = activations_.of(place.chunk, place.micro_batch);
  const auto guard = enter_root(weights, chunk, Pass::backward);
  const BlockContext ctx = training_context(weights, batch, gradient);
  const bool is_last = chunk.layers.last == table_.layers.size();
  if (is_last) head_backward(ctx, chunk.hidden, batch, scale);
  balance_.begin_backward(stream_, place.micro_batch);
  layers_backward(ctx, chunk, batch.tokens);
  if (is_last) add_losses(batch.pairs);
}

void CausalLM::evaluate(Weights& weights, const Batch& batch) {
  const auto use = use_activations();
  evaluate(weights, batch, {}, {}, {});
}

void CausalLM::evaluate(Weights& weights, const Batch& batch, const Place& place, const Tensor& in,
                        const Tensor& out) {
  auto& chunk = activations_.of(place.chunk, place.micro_batch);
  const auto guard = enter_root(weights, chunk, Pass::evaluate);
  const BlockContext ctx = context(weights, batch, Pass::evaluate);
  run_forward(ctx, batch, chunk, in, out);
  if (chunk.layers.last != table_.layers.size()) return;
  head(ctx, chunk.hidden, batch);
  add_losses(batch.pairs);
}

void CausalLM::logits(Weights& weights, const Batch& batch, Tensor logits) {
  const auto use = use_activations();
  const UnshardGuard guard(weights, table_.root, Pass::evaluate);
  const BlockContext ctx = context(weights, batch, Pass::evaluate);
  const Residual hidden = model::forward(ctx, table_, activations_, batch.tokens);
  const UnshardGuard norm(weights, table_.norm.module, Pass::evaluate);
  const UnshardGuard head(weights, table_.lm_head.module, Pass::evaluate);
  ops::linear(stream_, logits,
              gathered(stream_, tensor_, final_norm(ctx, table_, activations_, hidden)),
              weights.parameter(table_.lm_head.weight), Accumulate::no);
  if (traits_.logit_softcap > 0) ops::softcap(stream_, logits, traits_.logit_softcap);
}

/// Caps the logits (count, V), which may have padded columns, and computes their losses.
void CausalLM::cross_entropy(ops::CrossEntropyCall call) {
  call.softcap = traits_.logit_softcap;
  if (call.softcap > 0) ops::softcap(stream_, call.logits, call.softcap);
  if (tensor_.size() == 1) return ops::cross_entropy(stream_, call);
  const std::int64_t rows = call.logits.rows();
  const std::int64_t vocab_start = tensor_.rank() * call.logits.cols();
  // Padding has weights and so logits of zero, which stay as their gradient.
  call.logits =
      call.logits.slice_cols(0, std::min(call.logits.cols(), config_.vocab_size - vocab_start));
  const Tensor parts = activations_.loss_parts.slice(0, tensor_.size() * rows * 3)
                           .reshape({tensor_.size(), rows, 3});
  const Tensor mine = parts.slice(tensor_.rank() * rows * 3, rows * 3).reshape({rows, 3});
  ops::cross_entropy_part(stream_, mine, call.logits, call.targets, vocab_start);
  stream_.wait(tensor_.all_gather(parts, mine));
  ops::cross_entropy_from_parts(stream_, call, parts, vocab_start);
}

/// Computes all token losses with logits for loss_chunk tokens at a time, so the full (M, V) never
/// exists. Calls per_chunk(first, logits) after each chunk; if it is null, logits are kept.
template <class PerChunk>
void CausalLM::chunked_losses(const BlockContext& ctx, const Tensor& normed, const Tensor& targets,
                              const Slopes& slopes, PerChunk per_chunk) {
  constexpr bool train = !std::is_same_v<PerChunk, std::nullptr_t>;
  const Activations& a = activations_;
  const Tensor weight = ctx.weights.parameter(table_.lm_head.weight);
  const std::int64_t tokens = targets.numel();
  for (std::int64_t first = 0; first < tokens; first += a.logits.rows()) {
    const std::int64_t count = std::min(a.logits.rows(), tokens - first);
    const Tensor logits = a.logits.slice_rows(0, count);
    ops::linear(stream_, logits, normed.slice_rows(first, count), weight, Accumulate::no);
    cross_entropy({.losses = a.losses.slice(first, count),
                   .logits = logits,
                   .targets = targets.slice(first, count),
                   .gradient = train ? ops::WithGradient::yes : ops::WithGradient::no,
                   .scale = slopes.scale,
                   .row_factors = slopes.rows ? slopes.rows.slice(first, count) : Tensor()});
    if constexpr (train) per_chunk(first, logits);
  }
}

void CausalLM::head(const BlockContext& ctx, const Residual& hidden, const Batch& batch) {
  const UnshardGuard norm(ctx.weights, table_.norm.module, ctx.pass);
  const UnshardGuard head(ctx.weights, table_.lm_head.module, ctx.pass);
  const Tensor normed = gathered(stream_, tensor_, final_norm(ctx, table_, activations_, hidden));
  chunked_losses(ctx, normed, batch.targets, {}, nullptr);
  if (batch.pairs.documents) compare(batch.pairs);
}

/// Computes the pair losses from the token losses. Returns the derivative of their sum by
/// each token's loss.
Tensor CausalLM::compare(const PairsOfBatch& pairs) {
  const Activations& a = activations_;
  const Tensor log_probs = a.log_probs.slice(0, pairs.references.numel());
  // Ranks exchange room for all, so that traffic does not depend on the data.
  const Tensor summed = context_.size() > 1 ? a.log_probs : log_probs;
  ops::log_probs_of_documents(stream_, summed, a.losses, pairs.documents);
  context_.sum(summed);
  ops::pair_losses(stream_, {.row_factors = a.row_factors,
                             .results = pair_results(pairs),
                             .log_probs = log_probs,
                             .references = pairs.references,
                             .tokens = pairs.tokens,
                             .documents = pairs.documents,
                             .loss = pairs.loss,
                             .beta = pairs.beta});
  return a.row_factors;
}

/// Returns (pair_results, P).
Tensor CausalLM::pair_results(const PairsOfBatch& pairs) const {
  const auto count = pairs.references.numel() / 2;
  return activations_.pair_results.slice(0, ops::pair_results * count)
      .reshape({ops::pair_results, count});
}

/// Adds a batch's losses to those that the caller takes.
void CausalLM::add_losses(const PairsOfBatch& pairs) {
  if (!pairs.documents) return losses_.add(stream_, activations_.losses);
  if (context_.rank() > 0) return;  // all ranks of a sequence have the same
  const Tensor results = pair_results(pairs);
  if (results.numel() == 0) return;
  losses_.add(stream_, results.slice_rows(0, 1));
  pairs_.add(stream_, results);
}

namespace {

/// Returns true if the head's input needs no gradient.
bool trains_only_head(const ParameterTable& table) {
  return table.backward_end() == table.norm.module &&
         std::ranges::all_of(table[table.norm.module].parameters,
                             [&](ParameterId id) { return table[id].frozen; });
}

}  // namespace

/// Fuses forward and backward through final norm and head: each chunk of logits turns into its own
/// gradient at once, which gives the gradients for the head's weight and the hidden state.
/// Pair losses need all tokens' first, so these compute the logits once more.
void CausalLM::head_backward(const BlockContext& ctx, const Residual& hidden, const Batch& batch,
                             float scale) {
  const UnshardGuard norm(ctx.weights, table_.norm.module, Pass::backward);
  const UnshardGuard head(ctx.weights, table_.lm_head.module, Pass::backward);
  const Activations& a = activations_;
  const Tensor normed = gathered(stream_, tensor_, final_norm(ctx, table_, a, hidden));
  const Tensor d_normed = tensor_.partial(ctx.delta);
  const Tensor w = ctx.weights.parameter(table_.lm_head.weight);
  const bool only_head = trains_only_head(table_);
  GradientSlot dw = ctx.weights.gradient(table_.lm_head.weight);
  Slopes slopes{.scale = scale};
  if (batch.pairs.documents) {
    chunked_losses(ctx, normed, batch.targets, {}, nullptr);
    slopes.rows = compare(batch.pairs);
  }
  chunked_losses(ctx, normed, batch.targets, slopes,
                 [&](std::int64_t first, const Tensor& d_logits) {
                   const std::int64_t count = d_logits.rows();
                   if (!only_head)
                     ops::linear_backward_input(stream_, d_normed.slice_rows(first, count),
                                                d_logits, w, Accumulate::no);
                   if (!dw.tensor) return;
                   ops::linear_backward_weight(stream_, dw.tensor, d_logits,
                                               normed.slice_rows(first, count), dw.accumulate);
                   dw.accumulate = Accumulate::yes;
                 });
  if (only_head) return;
  stream_.wait(tensor_.reduce(ctx.delta));
  if (traits_.logit_scale != 1) ops::scale(stream_, ctx.delta, traits_.logit_scale);
  const Tensor x = hidden.delta ? a.last : hidden.x;
  norm_backward(ctx, table_.norm, {.x = x, .dy = ctx.delta, .dx = ctx.d_residual},
                a.last_statistics, Accumulate::no);
}

void CausalLM::layers_backward(const BlockContext& ctx, const ChunkPass& chunk,
                               const Tensor& tokens) {
  for (std::size_t i = chunk.blocks.size(); i-- > 0;) {
    if (!table_.has_backward(chunk.layers.first + i)) return;
    if (activations_.offload)
      activations_.offload->before_backward(stream_, chunk.first_kept + i, chunk.first_kept);
    chunk.blocks[i]->backward(ctx);
  }
  if (chunk.layers.first == 0 && table_.backward_end() == table_.root)
    embed_backward(ctx, table_, activations_, tokens);
}

}  // namespace llamesh::model
