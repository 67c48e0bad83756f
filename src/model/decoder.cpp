#include "model/decoder.hpp"

#include <algorithm>

#include "device/device.hpp"
#include "device/memory_meter.hpp"
#include "model/forward_pass.hpp"
#include "model/layers/block.hpp"
#include "ops/ops.hpp"

// D hidden, K kv heads, E head dim, V vocabulary

namespace llamesh::model {
Decoder::Decoder(const ModelConfig& config, const ParameterTable& table, Weights& weights,
                 std::int64_t positions, const Precision& precision, TensorParallel& tensor)
    : tensor_(tensor),
      config_(config),
      table_(table),
      weights_(weights),
      positions_(positions),
      chunk_(std::min(positions, largest_chunk)),
      precision_(precision),
      traits_(traits_of(config_)),
      activations_(config_, table, traits_, shape(chunk_), {}),
      rope_(stream_, config_, traits_, positions),
      logits_on_host_(
          static_cast<std::size_t>(tensor.size() * table[table.lm_head.weight].shape[0])) {
  check_positions(config, positions);
  allocate_cache();
}

PassShape Decoder::shape(std::int64_t tokens) const {
  return {.batch = 1,
          .sequence = tokens,
          .residual = tensor_.residual({tokens, config_.hidden_size}),
          .tensor_ranks = tensor_.size(),
          .dtype = precision_.dtype,
          .purpose = Purpose::generate,
          .linear = precision_.linear};
}

void Decoder::allocate_cache() {
  const auto plan_cache = [&](ArenaAllocator plan) {
    cache_.keys.clear();
    cache_.values.clear();
    for (const auto& block : activations_.whole().blocks) {
      const auto [keys, values] = block->cache_columns();
      cache_.keys.push_back(plan.take(precision_.dtype, {positions_, keys}));
      cache_.values.push_back(values > 0 ? plan.take(precision_.dtype, {positions_, values})
                                         : Tensor());
    }
    return plan.bytes();
  };
  const auto plan_outputs = [&](ArenaAllocator plan) {
    last_ = plan.take(precision_.dtype, {1, config_.hidden_size});
    const auto vocab = table_[table_.lm_head.weight].shape[0];
    all_logits_ = plan.take(DType::f32, {1, tensor_.size() * vocab});
    logits_ = all_logits_.slice_cols(tensor_.rank() * vocab, vocab);
    return plan.bytes();
  };
  cache_buffer_ = device::Buffer(plan_cache(ArenaAllocator(nullptr)));
  outputs_ = device::Buffer(plan_outputs(ArenaAllocator(nullptr)));
  plan_cache(ArenaAllocator(cache_buffer_.data()));
  plan_outputs(ArenaAllocator(outputs_.data()));
}

void Decoder::rewind(std::int64_t position) {
  expects(position >= 0 && position <= cache_.past, "rewound from {} to {}", cache_.past, position);
  cache_.past = position;
}

std::span<const float> Decoder::feed(std::span<const std::int32_t> tokens) {
  expects(!tokens.empty(), "no token is fed");
  validate(position() + std::ssize(tokens) <= positions_,
           "{} tokens do not fit behind {}: there is room for {}", tokens.size(), position(),
           positions_);
  const device::ScopedAllocation allocation(activations_.buffer.bytes(),
                                            device::MemoryUse::activations);
  const UnshardGuard root(weights_, table_.root, Pass::evaluate);
  while (!tokens.empty()) {
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(chunk_));
    pass(tokens.first(count));
    tokens = tokens.subspan(count);
  }
  const UnshardGuard head(weights_, table_.lm_head.module, Pass::evaluate);
  ops::linear(stream_, logits_, last_, weights_.parameter(table_.lm_head.weight), Accumulate::no);
  stream_.wait(tensor_.all_gather(all_logits_, logits_));
  if (traits_.logit_softcap > 0) ops::softcap(stream_, all_logits_, traits_.logit_softcap);
  device::download(stream_, logits_on_host_.data(), all_logits_);
  return std::span(logits_on_host_).first(static_cast<std::size_t>(config_.vocab_size));
}

/// Runs the tokens through all layers and keeps the last one's normed state.
void Decoder::pass(std::span<const std::int32_t> tokens) {
  const auto count = std::ssize(tokens);
  activations_.plan(shape(count));
  // The view is read-only.
  const Tensor ids = ids_.to_device(
      stream_, Tensor(const_cast<std::int32_t*>(tokens.data()), DType::i32, {count}));
  const BlockContext ctx{.stream = stream_,
                         .weights = weights_,
                         .tensor = tensor_,
                         .experts = one_rank_of_experts(),
                         .context = whole_sequences(),
                         .config = config_,
                         .traits = traits_,
                         .pass = Pass::evaluate,
                         .batch = 1,
                         .sequence = count,
                         .positions = {count, position()},
                         .rope = rope_,
                         .document_starts = {},
                         .delta = activations_.delta,
                         .d_residual = {},
                         .row_sums = activations_.row_sums,
                         .adapters = activations_.adapters,
                         .fp8 = activations_.fp8 ? &*activations_.fp8 : nullptr,
                         .cache = &cache_};
  const Residual hidden = forward(ctx, table_, activations_, ids);
  const UnshardGuard guard(weights_, table_.norm.module, Pass::evaluate);
  const Tensor normed = gathered(stream_, tensor_, final_norm(ctx, table_, activations_, hidden));
  ops::copy(stream_, last_, normed.slice_rows(count - 1, 1));
  cache_.past += count;
}

}  // namespace llamesh::model
