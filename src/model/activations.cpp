#include "model/activations.hpp"

#include <algorithm>

#include "model/planner.hpp"

namespace llamesh::model {
namespace {

struct Dims {
  std::int64_t B, T, M, D, QKV, HE, H, F, V, chunk;
};

/// The tensors of a layer that are kept when `keep`, and shared ones of the layers otherwise.
void plan_block(Planner& plan, const Dims& n, DType dtype, ActivationCheckpointing checkpointing,
                const BlockActivations* shared, BlockActivations& a) {
  using enum ActivationCheckpointing;
  const bool keep_gemms = shared == nullptr || checkpointing != full;
  const bool keep_cheap = shared == nullptr || checkpointing == none;
  if (shared) a = *shared;
  a.input = plan.take(dtype, {n.M, n.D});
  if (keep_gemms) {
    a.input_rms = plan.take(DType::f32, {n.M});
    a.qkv = plan.take(dtype, {n.M, n.QKV});
    a.attention = plan.take(dtype, {n.M, n.HE});
    a.log_sum_exp = plan.take(DType::f32, {n.B, n.H, n.T});
    a.middle = plan.take(dtype, {n.M, n.D});
    a.middle_rms = plan.take(DType::f32, {n.M});
    a.gate_up = plan.take(dtype, {n.M, 2 * n.F});
  }
  if (keep_cheap) {
    a.normed_input = plan.take(dtype, {n.M, n.D});
    a.normed_middle = plan.take(dtype, {n.M, n.D});
    a.swiglu = plan.take(dtype, {n.M, n.F});
  }
}

void plan_scratch(Planner& plan, const Dims& n, DType dtype, Scratch& s) {
  s.delta = plan.take(dtype, {n.M, n.D});
  s.d_residual = plan.take(dtype, {n.M, n.D});
  s.d_swiglu = plan.take(dtype, {n.M, n.F});
  s.d_attention = plan.take(dtype, {n.M, n.HE});
  s.d_qkv = plan.take(dtype, {n.M, n.QKV});
  s.d_softmax = plan.take(DType::f32, {n.B, n.H, n.T});
  s.logits = plan.take(dtype, {n.chunk, n.V});
  s.losses = plan.take(DType::f32, {n.M});
  s.last = plan.take(dtype, {n.M, n.D});
  s.last_rms = plan.take(DType::f32, {n.M});
  s.normed_last = plan.take(dtype, {n.M, n.D});
}

}  // namespace

Activations::Activations(const LlamaConfig& c, std::int64_t batch, std::int64_t sequence,
                         const MemoryOptions& memory, DType dtype)
    : blocks(static_cast<std::size_t>(c.num_hidden_layers)) {
  const std::int64_t tokens = batch * sequence;
  const Dims n{batch,
               sequence,
               tokens,
               c.hidden_size,
               (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim,
               c.num_attention_heads * c.head_dim,
               c.num_attention_heads,
               c.intermediate_size,
               c.vocab_size,
               std::clamp<std::int64_t>(memory.loss_chunk, 1, tokens)};
  const auto plan_all = [&](std::byte* base) {
    Planner plan(base);
    // The first layer owns a full set; the others own what they keep and share the rest of it.
    for (auto& block : blocks)
      plan_block(plan, n, dtype, memory.activation_checkpointing,
                 &block == blocks.data() ? nullptr : blocks.data(), block);
    plan_scratch(plan, n, dtype, scratch);
    return plan.bytes();
  };
  buffer = device::Buffer(plan_all(nullptr), device::Counted::no);
  plan_all(buffer.data());
}

}  // namespace llamesh::model
