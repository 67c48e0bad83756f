#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor.hpp"
#include "device/memory_meter.hpp"
#include "device/stream.hpp"
#include "model/layers/activations.hpp"
#include "model/layers/block.hpp"
#include "model/layers/router_balance.hpp"
#include "model/layers/weights.hpp"
#include "model/loss_sum.hpp"
#include "model/pair_log.hpp"
#include "ops/ops.hpp"

namespace llamesh::model {

/// P document pairs in a micro-batch. Pair p has the documents 2 p, which is preferred, and
/// 2 p + 1. If ranks divide sequences, every rank has the numbers of whole documents.
struct PairsOfBatch {
  Tensor documents = {};   ///< (B, T) int32: each token's document; -1: none. Empty: no pairs
  Tensor references = {};  ///< (2 P) fp32: log-probabilities under the reference model
  Tensor tokens = {};      ///< (2 P) fp32: tokens of each document that are in the loss
  ops::PairLoss loss = ops::PairLoss::dpo;
  float beta = 0;
};

/// A micro-batch. tokens and targets are (B, T) int32; negative targets are excluded from the loss.
/// If ranks divide sequences, T are those of one rank, in the positions of ContextParallel.
///
/// document_starts (B, T) int32 separates documents packed into a row: per token, the position of
/// its document's first token. A token sees only its own document, and positions count from there.
/// Empty: one document per row.
///
/// If `pairs` are there, the loss is that of document pairs.
struct Batch {
  Tensor tokens;
  Tensor targets;
  Tensor document_starts = {};
  PairsOfBatch pairs = {};
};

/// A causal language model of any family: pure mathematics on one micro-batch. The Weights passed
/// to each call decide where parameters come from and where gradients go.
class CausalLM {
 public:
  /// `config` is resolved. Batches have `batch` sequences with `sequence` tokens on each rank of
  /// `context`. Plans all activations now, so calls
  /// allocate no tensor memory. With Purpose::evaluate there are fewer, and train() must not be
  /// called. `table` has the shapes that this rank holds (sharding::local_table()). It, `tensor`,
  /// `experts` and `context` are borrowed. `data` is for the balance of experts. `chunks` are the
  /// layers that this rank computes, by forward() and backward(), if other ranks compute others;
  /// empty: all layers in one chunk.
  CausalLM(const ModelConfig& config, const ParameterTable& table, std::int64_t batch,
           std::int64_t sequence, const MemoryOptions& memory, const Precision& precision,
           TensorParallel& tensor = one_rank(), Purpose purpose = Purpose::train,
           ExpertParallel& experts = one_rank_of_experts(), DataRanks data = {},
           ContextParallel& context = whole_sequences(),
           const std::vector<LayerRange>& chunks = {});
  CausalLM(const CausalLM&) = delete;
  CausalLM& operator=(const CausalLM&) = delete;

  /// Runs forward and backward. Gradients are those of `scale` times the summed token or
  /// pair losses, and of the losses on routers (RouterBalance); take_loss() returns the sum without
  /// the scale and without those. On a GPU, queues the work on the compute stream and does not
  /// wait; the work reads the batch. Collective over the data ranks if there is a load-balancing
  /// loss.
  void train(Weights& weights, const Batch& batch, float scale);

  /// A chunk of the model, and a micro-batch of the step on its way through it. Micro-batches enter
  /// a chunk in order in each pass; at most LayerRange::in_flight are between the two passes.
  struct Place {
    int chunk = 0;  ///< among those of this rank
    std::int64_t micro_batch = 0;
  };
  /// Runs a chunk forward. `in` (M', D') is the residual stream behind the chunk before, `out`
  /// takes the one behind this chunk. The first chunk reads the batch's tokens instead of `in`, the
  /// last one keeps its output.
  void forward(Weights& weights, const Batch& batch, const Place& place, const Tensor& in,
               const Tensor& out);
  /// Runs it backward. Turns `gradient` (M', D') from that of `out` into that of `in`; the last
  /// chunk computes it from head and loss. Gradients and loss are those of train().
  void backward(Weights& weights, const Batch& batch, const Place& place, const Tensor& gradient,
                float scale);
  /// Runs a chunk forward without a backward pass to come; the last one adds its losses to
  /// take_loss().
  void evaluate(Weights& weights, const Batch& batch, const Place& place, const Tensor& in,
                const Tensor& out);
  /// Counts the memory of all activations as in use, as each train() does for itself.
  device::ScopedAllocation use_activations() const;

  /// Begins a step with so many calls to train(): the losses on routers are means over a step.
  /// Without a call, each train() is a step.
  void begin_step(std::int64_t micro_batches) { balance_.begin_step(micro_batches); }
  /// Ends it, before take_router_sums(). Collective over the data ranks if there are experts.
  void end_step() { balance_.end_step(stream_); }
  /// Returns what the step's routers have chosen, on all data ranks. Waits for the device.
  RouterSums take_router_sums() { return balance_.take(stream_); }

  /// Runs forward only; take_loss() returns the summed losses.
  void evaluate(Weights& weights, const Batch& batch);

  /// Returns the token or pair losses summed over all batches since the last call, in nats. Waits
  /// for the device. If ranks divide sequences, only the first one has pair losses.
  double take_loss() { return losses_.take(); }
  /// Returns what the pairs in all batches since the last call have given, in order, on the same
  /// rank. Waits for the device.
  std::vector<PairResult> take_pairs() { return pairs_.take(); }
  /// Returns the same sum without resetting it.
  double loss_so_far() { return losses_.sum(); }
  /// Returns the seconds for which MemoryOptions::activation_offload copies have blocked the
  /// compute stream so far.
  double seconds_exposed_by_copies() const {
    return activations_.offload ? activations_.offload->seconds_exposed() : 0;
  }

  /// Runs forward only and writes `logits`: (M, V) for this rank's vocabulary part.
  void logits(Weights& weights, const Batch& batch, Tensor logits);

 private:
  BlockContext context(Weights& weights, const Batch& batch, Pass pass);
  BlockContext training_context(Weights& weights, const Batch& batch, const Tensor& gradient);
  std::unique_ptr<UnshardGuard> enter_root(Weights& weights, const ChunkPass& chunk,
                                           Pass pass) const;
  void run_forward(const BlockContext& ctx, const Batch& batch, ChunkPass& chunk, const Tensor& in,
                   const Tensor& out);
  void head(const BlockContext& ctx, const Residual& hidden, const Batch& batch);
  void head_backward(const BlockContext& ctx, const Residual& hidden, const Batch& batch,
                     float scale);
  Tensor compare(const PairsOfBatch& pairs);
  Tensor pair_results(const PairsOfBatch& pairs) const;
  void add_losses(const PairsOfBatch& pairs);
  void layers_backward(const BlockContext& ctx, const ChunkPass& chunk, const Tensor& tokens);
  void cross_entropy(ops::CrossEntropyCall call);
  /// Factors on the gradients of token losses.
  struct Slopes {
    float scale = 1;
    Tensor rows = {};  ///< (M) fp32, or empty
  };
  template <class PerChunk>
  void chunked_losses(const BlockContext& ctx, const Tensor& normed, const Tensor& targets,
                      const Slopes& slopes, PerChunk per_chunk);

  TensorParallel& tensor_;
  ExpertParallel& experts_;
  ContextParallel& context_;
  ModelConfig config_;
  const ParameterTable& table_;
  std::int64_t batch_;
  std::int64_t sequence_;
  device::Stream& stream_ = device::compute_stream();
  ModelTraits traits_;
  Activations activations_;
  RopeTables rope_;
  LossSum losses_;
  PairLog pairs_;
  RouterBalance balance_;
};

}  // namespace llamesh::model
