#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "model/description/model_config.hpp"
#include "model/layers/activation_offload.hpp"
#include "model/layers/block.hpp"
#include "model/layers/memory_options.hpp"

/// M tokens, (M', D') this rank's part of the residual stream, V this rank's vocabulary.
namespace llamesh::model {

/// Consecutive layers that are computed in one go, with the embedding before the first layer and
/// the head behind the last one.
struct LayerRange {
  std::size_t first = 0;
  std::size_t last = 0;  ///< one past the end
  int in_flight = 1;     ///< micro-batches whose backward pass may still be to come
};

/// A chunk's layers with what they keep for one micro-batch.
struct ChunkPass {
  LayerRange layers;
  std::size_t first_kept = 0;                  ///< number of its first layer in ActivationOffload
  std::vector<std::unique_ptr<Block>> blocks;  ///< of these layers
  /// (M', D') residual stream after the last layer, of the last chunk of several; else empty.
  Tensor output;
  Residual hidden;  ///< the same after a forward pass, pending if the model is one chunk
};

/// Every intermediate tensor in a micro-batch's pass, planned once in one buffer. Depending on the
/// checkpointing options, a layer has its own tensors or shares the last layer's for what it
/// recomputes. The last layer keeps everything: nothing overwrites it between its forward and
/// backward pass, so recomputation would save no memory. The same holds for the MLP or the experts
/// of the last layer that has such. If other passes may come between the two, all layers share
/// tensors that belong to none of them.
class Activations {
 public:
  /// Takes memory for passes of `pass`, through all layers or `chunks` of them. `table` has the
  /// shapes that this rank holds; it is borrowed.
  Activations(const ModelConfig& config, const ParameterTable& table, const ModelTraits& traits,
              const PassShape& pass, const MemoryOptions& memory,
              const std::vector<LayerRange>& chunks = {});

  /// Reuses the memory for a pass that needs no more.
  void plan(const PassShape& pass);

  /// The passes of a whole model that runs forward and then backward.
  const ChunkPass& whole() const { return passes_.front().front(); }
  std::size_t chunks() const { return passes_.size(); }
  /// The passes of one of the chunks for one of a step's micro-batches.
  ChunkPass& of(int chunk, std::int64_t micro_batch) {
    auto& of_chunk = passes_[static_cast<std::size_t>(chunk)];
    return of_chunk[static_cast<std::size_t>(micro_batch) % of_chunk.size()];
  }

  Tensor positions;   ///< (M) int32, if positions are learned
  Tensor delta;       ///< (M', D'), see BlockContext
  Tensor d_residual;  ///< (M', D'), see BlockContext
  Tensor row_sums;    ///< (t M') fp32, see BlockContext; empty if rows are whole
  Tensor adapters;    ///< (2, M, R), R the columns of lora's adapters that share an input
  std::optional<Fp8Operands> fp8;  ///< for M rows, see BlockContext
  Tensor last;                     ///< (M', D') residual stream after the last layer
  NormStatistics last_statistics;
  Tensor normed_last;  ///< (M', D')
  Tensor logits;       ///< (loss_chunk, V)
  Tensor loss_parts;   ///< (t loss_chunk 3) fp32, for t ranks that each have a part of V
  Tensor losses;       ///< (M) fp32
  // For losses on the P document pairs that a micro-batch may have:
  Tensor log_probs;       ///< (2 P) fp32
  Tensor pair_results;    ///< (pair_results P) fp32
  Tensor row_factors;     ///< (M) fp32
  device::Buffer buffer;  ///< counted as in use only while a step claims it
  /// Set with MemoryOptions::activation_offload if there are enough layers. The last one of a whole
  /// model stays out of it.
  std::unique_ptr<ActivationOffload> offload;

 private:
  void make_passes(const std::vector<LayerRange>& chunks);
  std::int64_t plan_at(std::byte* base, const PassShape& pass);
  void plan_blocks(ArenaAllocator& plan, const PassShape& pass);
  void plan_passes(ArenaAllocator& plan, const PassShape& pass);
  std::vector<Tensor> plan_in_turns(ArenaAllocator& plan, const PassShape& pass, const Block* last);
  std::vector<std::pair<Block*, std::size_t>> blocks_in_turns() const;
  /// Returns true if a backward pass always follows its forward pass, through all layers.
  bool is_whole() const {
    return passes_.size() == 1 && passes_.front().size() == 1 &&
           whole().blocks.size() == table_.layers.size();
  }
  bool offloads(const PassShape& pass) const {
    return memory_.activation_offload && pass.has_backward() &&
           ActivationOffload::helps(blocks_in_turns().size());
  }
  ActivationCheckpointing checkpointing_of(std::size_t layer) const;
  void plan_templates(ArenaAllocator& plan, const PassShape& pass,
                      ActivationCheckpointing checkpointing);
  const Block* alike(std::size_t layer) const;

  const ParameterTable& table_;
  std::int64_t hidden_, vocab_;  ///< D and V
  MemoryOptions memory_;
  std::vector<std::size_t> last_of_kind_;
  std::vector<std::vector<ChunkPass>> passes_;  ///< by chunk, and micro-batch in flight
  /// If layers share slots, or no layer keeps everything: for each kind (except the last layer's,
  /// if that does), by its last layer, a block that only holds the tensors which the layers of this
  /// kind share.
  std::map<std::size_t, std::unique_ptr<Block>> templates_;
  std::vector<Tensor> in_turns_;  ///< per layer: all that it keeps, if layers share slots
};

}  // namespace llamesh::model
