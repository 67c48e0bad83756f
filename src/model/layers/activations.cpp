#include "model/layers/activations.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "device/device.hpp"
#include "model/description/lora.hpp"
#include "model/layers/transformer_block.hpp"

namespace llamesh::model {

namespace {

/// Each chunk's product for the head's weight gradient reads and writes that gradient, V x C in
/// fp32: 4.2 GB for 8B, 0.9 ms on an H200, next to 1.4 ms of FLOPs for 1024 tokens. Logits for 4096
/// tokens take 1 GB.
std::int64_t loss_chunk(const MemoryOptions& memory) {
  if (memory.loss_chunk > 0) return memory.loss_chunk;
  return device::kind_of_kernels() == device::Kind::cuda ? 4096 : 1024;
}

}  // namespace

Activations::Activations(const ModelConfig& config, const ParameterTable& table,
                         const ModelTraits& traits, const PassShape& pass,
                         const MemoryOptions& memory, const std::vector<LayerRange>& chunks)
    : table_(table),
      hidden_(config.hidden_size),
      vocab_(table[table.lm_head.weight].shape[0]),
      memory_(memory),
      last_of_kind_(table.last_of_kind()) {
  const auto make_block = [&](std::size_t i) {
    return std::make_unique<TransformerBlock>(config, table, traits.layers[i], i);
  };
  make_passes(chunks.empty() ? std::vector{LayerRange{0, table.layers.size()}} : chunks);
  std::set<std::size_t> kinds;
  std::size_t layers_so_far = 0;
  for (auto& of_chunk : passes_)
    for (auto& of_micro_batch : of_chunk) {
      of_micro_batch.first_kept = layers_so_far;
      layers_so_far += of_micro_batch.layers.last - of_micro_batch.layers.first;
      for (auto i = of_micro_batch.layers.first; i < of_micro_batch.layers.last; ++i) {
        of_micro_batch.blocks.push_back(make_block(i));
        kinds.insert(last_of_kind_[i]);
      }
    }
  for (const auto i : kinds)
    if (!is_whole() || (offloads(pass) && i + 1 < table.layers.size()))
      templates_[i] = make_block(i);
  buffer = device::Buffer(plan_at(nullptr, pass), device::Counted::no);
  plan(pass);
  if (offloads(pass))
    offload =
        std::make_unique<ActivationOffload>(in_turns_, is_whole() ? ActivationOffload::places : 0);
}

void Activations::make_passes(const std::vector<LayerRange>& chunks) {
  for (const auto& layers : chunks) {
    auto& of_chunk = passes_.emplace_back();
    for (int i = 0; i < layers.in_flight; ++i) of_chunk.push_back({layers, 0, {}, {}, {}});
  }
}

void Activations::plan(const PassShape& pass) {
  const auto bytes = plan_at(buffer.data(), pass);
  expects(bytes <= buffer.bytes(), "a pass of {} tokens needs {} bytes, of {}", pass.tokens(),
          bytes, buffer.bytes());
}

ActivationCheckpointing Activations::checkpointing_of(std::size_t layer) const {
  if (is_whole() && layer + 1 == table_.layers.size()) return ActivationCheckpointing::none;
  if (std::cmp_less(layer, memory_.full_checkpointing_layers)) return ActivationCheckpointing::full;
  return memory_.activation_checkpointing;
}

void Activations::plan_blocks(ArenaAllocator& plan, const PassShape& pass) {
  if (!is_whole()) return plan_passes(plan, pass);
  const auto& blocks = whole().blocks;
  auto& last_block = *blocks.back();
  last_block.plan(plan, pass, checkpointing_of(blocks.size() - 1), nullptr, nullptr);
  if (offloads(pass)) {
    plan_templates(plan, pass, ActivationCheckpointing::full);
    in_turns_ = plan_in_turns(plan, pass, &last_block);
    return;
  }
  for (std::size_t i = blocks.size() - 1; i-- > 0;)
    blocks[i]->plan(plan, pass, checkpointing_of(i), &last_block, alike(i));
}

/// Plans what each chunk keeps for each micro-batch in flight, and once what all recompute.
void Activations::plan_passes(ArenaAllocator& plan, const PassShape& pass) {
  const bool recomputes = memory_.activation_checkpointing != ActivationCheckpointing::none ||
                          memory_.full_checkpointing_layers > 0;
  plan_templates(plan, pass,
                 recomputes ? ActivationCheckpointing::none : ActivationCheckpointing::full);
  const Block* shared = templates_.begin()->second.get();
  if (offloads(pass))
    in_turns_ = plan_in_turns(plan, pass, shared);
  else
    for (const auto& [block, layer] : blocks_in_turns())
      block->plan(plan, pass, checkpointing_of(layer), shared, alike(layer));
  for (auto& of_chunk : passes_)
    for (auto& of_micro_batch : of_chunk)
      if (of_micro_batch.layers.last == table_.layers.size())
        of_micro_batch.output = plan.take(pass.dtype, {pass.residual.rows, pass.residual.cols});
}

/// `checkpointing`: the mode whose tensors are there for attention, if no layer has them.
void Activations::plan_templates(ArenaAllocator& plan, const PassShape& pass,
                                 ActivationCheckpointing checkpointing) {
  const Block* last = is_whole() ? whole().blocks.back().get() : nullptr;
  for (const auto& [layer, block] : templates_) {
    block->plan(plan, pass, last ? ActivationCheckpointing::full : checkpointing, last, nullptr);
    if (!last) last = block.get();  // they share attention's tensors
  }
}

/// Returns the block whose MLP or experts the layer shares; null if it is that one itself.
const Block* Activations::alike(std::size_t layer) const {
  const auto last = last_of_kind_[layer];
  if (const auto found = templates_.find(last); found != templates_.end())
    return found->second.get();
  return last == layer ? nullptr : whole().blocks[last].get();
}

/// Returns all blocks with their layers, in the order of ActivationOffload: without the last one of
/// a whole model, whose backward pass follows its forward pass.
std::vector<std::pair<Block*, std::size_t>> Activations::blocks_in_turns() const {
  std::vector<std::pair<Block*, std::size_t>> all;
  for (const auto& of_chunk : passes_)
    for (const auto& of_micro_batch : of_chunk)
      for (std::size_t i = 0; i < of_micro_batch.blocks.size(); ++i)
        all.emplace_back(of_micro_batch.blocks[i].get(), of_micro_batch.layers.first + i);
  if (is_whole()) all.pop_back();
  return all;
}

/// Plans slots that layers use in turn, each as large as the largest layer.
std::vector<Tensor> Activations::plan_in_turns(ArenaAllocator& plan, const PassShape& pass,
                                               const Block* last) {
  const auto blocks = blocks_in_turns();
  const auto plan_layer = [&](std::size_t i, std::byte* base) {
    const auto& [block, layer] = blocks[i];
    ArenaAllocator place(base);
    block->plan(place, pass, checkpointing_of(layer), last, alike(layer));
    return Tensor(base, DType::f32, {place.bytes() / size_of(DType::f32)});
  };
  std::int64_t numel = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    numel = std::max(numel, plan_layer(i, nullptr).numel());
  std::array<Tensor, ActivationOffload::places> places;
  for (auto& place : places) place = plan.take(DType::f32, {numel});
  std::vector<Tensor> kept;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    kept.push_back(plan_layer(i, static_cast<std::byte*>(places[i % places.size()].data())));
  return kept;
}

/// Returns the number of bytes required.
std::int64_t Activations::plan_at(std::byte* base, const PassShape& pass) {
  ArenaAllocator plan(base);
  const auto stream = [&] {
    return plan.take(pass.dtype, {pass.residual.rows, pass.residual.cols});
  };
  plan_blocks(plan, pass);
  if (table_.positions) positions = plan.take(DType::i32, {pass.tokens()});
  delta = stream();
  last = stream();
  last_statistics = plan_statistics(plan, table_.norm, pass.residual.rows);
  if (pass.residual.cols < hidden_)
    row_sums = plan.take(DType::f32, {pass.tensor_ranks * pass.residual.rows});
  if (const auto columns = adapter_columns(table_); columns > 0)
    adapters = plan.take(pass.dtype, {2, pass.tokens(), columns});
  if (pass.has_fp8()) fp8.emplace(plan, table_, pass.tokens());
  normed_last = stream();
  if (pass.has_backward()) d_residual = stream();
  if (pass.has_loss()) {
    const auto chunk = std::min(loss_chunk(memory_), pass.tokens());
    logits = plan.take(pass.dtype, {chunk, vocab_});
    loss_parts = plan.take(DType::f32, {pass.tensor_ranks * chunk * 3});
    losses = plan.take(DType::f32, {pass.tokens()});
  }
  if (pass.has_pairs()) {
    const auto pairs = max_pairs(pass.batch, pass.context_ranks * pass.sequence);
    log_probs = plan.take(DType::f32, {2 * pairs});
    pair_results = plan.take(DType::f32, {ops::pair_results * pairs});
    row_factors = plan.take(DType::f32, {pass.tokens()});
  }
  return plan.bytes();
}

}  // namespace llamesh::model
