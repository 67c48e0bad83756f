#pragma once

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"
#include "model/activations.hpp"
#include "model/block.hpp"
#include "model/loss_sum.hpp"
#include "model/weights.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {

/// A micro-batch. tokens and targets are (B, T) int32; a negative target is left out of the loss.
///
/// Several documents packed into a row are kept apart by document_starts (B, T) int32: the index in
/// its row of the first token of each token's document. A token sees its own document only, and
/// its position is counted from there. Empty: every row is one document.
struct Batch {
  Tensor tokens;
  Tensor targets;
  Tensor document_starts = {};
};

/// A Llama: pure mathematics on one micro-batch. Where its weights come from and its gradients
/// go to is the business of the Weights that each call is given.
class Llama {
 public:
  /// `config` is resolved; batches have `batch` sequences of `sequence` tokens. Parameters and
  /// activations are of `dtype`. Plans all activations now: calls allocate no memory for tensors.
  /// With Purpose::evaluate these are fewer, and train() must not be called. `table` and `tensor`
  /// are borrowed.
  Llama(const LlamaConfig& config, const ParameterTable& table, std::int64_t batch,
        std::int64_t sequence, const MemoryOptions& memory, DType dtype,
        TensorParallel& tensor = one_rank(), Purpose purpose = Purpose::train);
  Llama(const Llama&) = delete;
  Llama& operator=(const Llama&) = delete;

  /// Forward and backward. The gradients are those of `scale` times the sum of the token losses,
  /// which take_loss() gives without the scale. On a GPU work is put into the compute stream and
  /// not waited for; it reads the batch.
  void train(Weights& weights, const Batch& batch, float scale);

  /// Forward alone: take_loss() gives the sum of the token losses.
  void evaluate(Weights& weights, const Batch& batch);

  /// The sum of the token losses of all batches since the last call, in nats. Waits for the device.
  double take_loss() { return losses_.take(); }
  /// On CPUs, seconds so far in which the compute stream was blocked by the copies of
  /// MemoryOptions::activation_offload.
  double seconds_exposed_by_copies() const {
    return activations_.offload ? activations_.offload->seconds_exposed() : 0;
  }

  /// The logits of a forward pass alone, written to `logits`: (M, V), of this rank's part of the
  /// vocabulary.
  void logits(Weights& weights, const Batch& batch, Tensor logits);

 private:
  BlockContext context(Weights& weights, const Batch& batch, Pass pass);
  void head(const BlockContext& context, const Residual& hidden, const Tensor& targets);
  void head_backward(const BlockContext& context, const Residual& hidden, const Tensor& targets,
                     float scale);
  void backward(const BlockContext& context, const Tensor& tokens);
  void cross_entropy(const BlockContext& x, const Tensor& losses, const Tensor& logits,
                     const Tensor& targets, float scale, ops::WithGradient gradient);
  template <class PerChunk>
  void chunked_losses(const BlockContext& x, const ColumnBlocks& normed, const Tensor& targets,
                      float scale, PerChunk per_chunk);

  TensorParallel& tensor_;
  LlamaConfig config_;  ///< of this rank's part
  const ParameterTable& table_;
  std::int64_t batch_;
  std::int64_t sequence_;
  device::Stream& stream_ = device::compute_stream();
  Activations activations_;
  device::Buffer rope_;
  LossSum losses_;
};

}  // namespace llamesh::model
