#include "model/activations.hpp"

#include <algorithm>
#include <utility>

#include "model/planner.hpp"

namespace llamesh::model {
namespace {

struct Dims {
  std::int64_t B, T, M, D, QKV, HE, H, F, V, chunk;
};

ActivationCheckpointing checkpointing_of(std::size_t layer, std::size_t layers,
                                         const MemoryOptions& memory) {
  if (layer + 1 == layers) return ActivationCheckpointing::none;
  if (std::cmp_less(layer, memory.full_checkpointing_layers)) return ActivationCheckpointing::full;
  return memory.activation_checkpointing;
}

/// Gives a layer tensors of its own for what it keeps, and leaves the others of `a` as they are.
void plan_block(Planner& plan, const Dims& n, DType dtype, BlockActivations& a) {
  using enum ActivationCheckpointing;
  a.input = plan.take(dtype, {n.M, n.D});
  if (a.checkpointing != full) {
    a.input_rms = plan.take(DType::f32, {n.M});
    a.qkv = plan.take(dtype, {n.M, n.QKV});
    a.attention = plan.take(dtype, {n.M, n.HE});
    a.log_sum_exp = plan.take(DType::f32, {n.B, n.H, n.T});
    a.middle = plan.take(dtype, {n.M, n.D});
    a.middle_rms = plan.take(DType::f32, {n.M});
    a.gate_up = plan.take(dtype, {n.M, 2 * n.F});
  }
  if (a.checkpointing == none) {
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
    for (std::size_t i = blocks.size(); i-- > 0;) {
      blocks[i] = blocks.back();  // planned first, whole
      blocks[i].checkpointing = checkpointing_of(i, blocks.size(), memory);
      plan_block(plan, n, dtype, blocks[i]);
    }
    plan_scratch(plan, n, dtype, scratch);
    return plan.bytes();
  };
  buffer = device::Buffer(plan_all(nullptr), device::Counted::no);
  plan_all(buffer.data());
}

}  // namespace llamesh::model
