#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "model/description/model_config.hpp"
#include "model/layers/activation_offload.hpp"
#include "model/layers/block.hpp"
#include "model/layers/memory_options.hpp"

/// M tokens, (M', D') this rank's part of the residual stream, V this rank's vocabulary.
namespace llamesh::model {

/// Every intermediate tensor in a micro-batch's pass, planned once in one buffer. Depending on the
/// checkpointing options, a layer has its own tensors or shares the last layer's for what it
/// recomputes. The last layer keeps everything: nothing overwrites it between its forward and
/// backward pass, so recomputation would save no memory. The same holds for the MLP or the experts
/// of the last layer that has such.
class Activations {
 public:
  /// Takes memory for passes of `pass`. `table` has the shapes that this rank holds; it is
  /// borrowed.
  Activations(const ModelConfig& config, const ParameterTable& table, const ModelTraits& traits,
              const PassShape& pass, const MemoryOptions& memory);

  /// Reuses the memory for a pass that needs no more.
  void plan(const PassShape& pass);

  std::vector<std::unique_ptr<Block>> blocks;
  Tensor positions;   ///< (M) int32, if positions are learned
  Tensor delta;       ///< (M', D'), see BlockContext
  Tensor d_residual;  ///< (M', D'), see BlockContext
  Tensor row_sums;    ///< (t M') fp32, see BlockContext; empty if rows are whole
  Tensor adapters;    ///< (2, M, R), R the columns of lora's adapters that share an input
  Tensor last;        ///< (M', D') residual stream after the last layer
  NormStatistics last_statistics;
  Tensor normed_last;     ///< (M', D')
  Tensor logits;          ///< (loss_chunk, V)
  Tensor loss_parts;      ///< (t loss_chunk 3) fp32, for t ranks that each have a part of V
  Tensor losses;          ///< (M) fp32
  device::Buffer buffer;  ///< counted as in use only while a step claims it
  /// Set with MemoryOptions::activation_offload if there are enough layers.
  std::unique_ptr<ActivationOffload> offload;

 private:
  std::int64_t plan_at(std::byte* base, const PassShape& pass);
  void plan_blocks(ArenaAllocator& plan, const PassShape& pass);
  std::vector<Tensor> plan_in_turns(ArenaAllocator& plan, const PassShape& pass);
  bool offloads(const PassShape& pass) const {
    return memory_.activation_offload && pass.has_backward() &&
           ActivationOffload::helps(blocks.size());
  }
  ActivationCheckpointing checkpointing_of(std::size_t layer) const;
  void plan_templates(ArenaAllocator& plan, const PassShape& pass);
  const Block* alike(std::size_t layer) const;

  const ParameterTable& table_;
  std::int64_t hidden_, vocab_;  ///< D and V
  MemoryOptions memory_;
  std::vector<std::size_t> last_of_kind_;
  /// If layers share slots: for each kind except the last layer's, by its last layer, a block that
  /// only holds the tensors which the layers of this kind share.
  std::map<std::size_t, std::unique_ptr<Block>> templates_;
  std::vector<Tensor> in_turns_;  ///< per layer: all that it keeps, if layers share slots
};

}  // namespace llamesh::model
