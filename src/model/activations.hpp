#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "model/activation_offload.hpp"
#include "model/block.hpp"
#include "model/llama_config.hpp"
#include "model/memory_options.hpp"

/// M tokens, (M', D') the part of the residual stream that this rank holds, V vocabulary of this
/// rank.
namespace llamesh::model {

/// Every intermediate of a pass of one micro-batch, planned once in one buffer. By the
/// checkpointing options, layers have tensors of their own or use the last layer's for what is
/// computed again. The last layer keeps everything: nobody writes there between its forward and its
/// backward pass, so computing it again would save no memory.
class Activations {
 public:
  /// Takes memory for passes of `pass`; `config` is this rank's part of the model. Both and the
  /// table are borrowed.
  Activations(const LlamaConfig& config, const ParameterTable& table, const PassShape& pass,
              const MemoryOptions& memory);

  /// Plans the same memory for a pass that needs no more of it.
  void plan(const PassShape& pass);

  std::vector<std::unique_ptr<Block>> blocks;
  Tensor delta;           ///< (M', D'), see BlockContext
  Tensor d_residual;      ///< (M', D'), see BlockContext
  Tensor row_sums;        ///< (t M') fp32, see BlockContext; empty where rows are whole
  Tensor last;            ///< (M', D') the residual stream after the last layer
  Tensor last_rms;        ///< (M') fp32
  Tensor normed_last;     ///< (M', D')
  Tensor logits;          ///< (loss_chunk, V)
  Tensor loss_parts;      ///< (t loss_chunk 3) fp32, of t ranks that have a part of V each
  Tensor losses;          ///< (M) fp32
  device::Buffer buffer;  ///< counted as in use only while a step claims it
  /// Of MemoryOptions::activation_offload, where there are layers enough.
  std::unique_ptr<ActivationOffload> offload;

 private:
  std::int64_t plan_at(std::byte* base, const PassShape& pass);
  void plan_blocks(Planner& plan, const PassShape& pass);
  std::vector<Tensor> plan_in_turns(Planner& plan, const PassShape& pass);
  bool offloads(const PassShape& pass) const {
    return memory_.activation_offload && pass.has_backward() &&
           ActivationOffload::helps(blocks.size());
  }
  ActivationCheckpointing checkpointing_of(std::size_t layer) const;

  const LlamaConfig& config_;
  MemoryOptions memory_;
  std::vector<Tensor> in_turns_;  ///< by layer: all that it keeps, where layers take turns
};

}  // namespace llamesh::model
