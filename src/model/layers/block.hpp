#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/description/model_config.hpp"
#include "model/description/traits.hpp"
#include "model/layers/arena.hpp"
#include "model/layers/context_parallel.hpp"
#include "model/layers/expert_parallel.hpp"
#include "model/layers/fp8_operands.hpp"
#include "model/layers/memory_options.hpp"
#include "model/layers/precision.hpp"
#include "model/layers/rope_table.hpp"
#include "model/layers/tensor_parallel.hpp"
#include "model/layers/weights.hpp"

/// B batch, T sequence, M = B T tokens, D hidden, (M', D') this rank's part of the residual stream
/// (M, D) (all of it without tensor parallelism), E head dim, K kv heads.
namespace llamesh::model {

/// The residual stream as a pending sum; the next norm adds it up in the same pass.
struct Residual {
  Tensor x;      ///< (M', D')
  Tensor delta;  ///< (M', D'), or empty
};

/// Statistics that a norm keeps for its backward pass.
struct NormStatistics {
  Tensor inverse;  ///< (M') fp32: 1 / root mean square, or 1 / standard deviation
  Tensor mean;     ///< (M') fp32; empty for RMSNorm
};

/// Takes the statistics of `rows` rows.
NormStatistics plan_statistics(ArenaAllocator& plan, const WeightModule& norm, std::int64_t rows);

/// Columns that a rank caches per layer and token: keys K E and values K V, or latents as keys.
struct CacheColumns {
  std::int64_t keys, values;
};

/// Keys and values for earlier tokens, for inference.
struct KvCache {
  std::vector<Tensor> keys;    ///< per layer: (positions, CacheColumns::keys)
  std::vector<Tensor> values;  ///< per layer: likewise; empty without columns
  std::int64_t past = 0;       ///< cached tokens
};

class RouterBalance;

/// Inputs shared by all layers in a pass.
struct BlockContext {
  device::Stream& stream;
  Weights& weights;
  TensorParallel& tensor;
  ExpertParallel& experts;
  ContextParallel& context;
  const ModelConfig& config;
  const ModelTraits& traits;
  Pass pass;              ///< in forward functions: evaluate, forward or recompute
  std::int64_t batch;     ///< B
  std::int64_t sequence;  ///< T
  ops::RowPositions positions = {sequence};  ///< of the tokens in a row
  const RopeTables& rope;                    ///< by layer, for all positions
  Tensor document_starts;                    ///< (B, T) int32, or empty
  /// (M', D') attention or MLP output that is added to the residual stream; also gradients with
  /// respect to norm outputs.
  Tensor delta;
  Tensor d_residual;     ///< (M', D') residual stream gradient, passed from layer to layer
  Tensor row_sums;       ///< fp32 norm scratch, one element per row and rank, if ranks have columns
  Tensor adapters = {};  ///< (2, M, R) x A^T of adapters and its gradient (Activations::adapters)
  Fp8Operands* fp8 = nullptr;        ///< if set, linear layers multiply in FP8
  RouterBalance* balance = nullptr;  ///< if set, routers are counted in it and balanced by it
  KvCache* cache = nullptr;          ///< if set, the pass continues the one text cached there
};

/// The purpose of passes. Each needs all that the one before it needs, and more.
enum class Purpose : std::uint8_t {
  generate,        ///< forward only; the caller computes the logits that it wants
  evaluate,        ///< forward and loss: no layer keeps anything
  train,           ///< forward, loss and backward
  train_on_pairs,  ///< the same with losses on document pairs
};

/// Returns how many document pairs B rows may hold: S tokens, and one more that is only a
/// target, with at least two for a document.
constexpr std::int64_t max_pairs(std::int64_t batch, std::int64_t sequence) {
  return batch * ((sequence + 1) / 4);
}

/// Sizes that determine a pass's tensors.
struct PassShape {
  std::int64_t batch;                   ///< B
  std::int64_t sequence;                ///< T
  TensorParallel::MatrixSize residual;  ///< (M', D')
  int tensor_ranks;                     ///< ranks that split the layers' matrices
  DType dtype;
  Purpose purpose;
  int expert_ranks = 1;  ///< ranks that hold different experts
  LinearPrecision linear = LinearPrecision::same;
  int context_ranks = 1;  ///< ranks that divide each sequence
  std::int64_t tokens() const { return batch * sequence; }
  bool has_loss() const { return purpose != Purpose::generate; }
  bool has_backward() const { return purpose >= Purpose::train; }
  bool has_pairs() const { return purpose == Purpose::train_on_pairs; }
  bool has_fp8() const { return linear != LinearPrecision::same; }
};

/// A decoder layer, with what it keeps between forward and backward pass. The model's passes
/// (causal_lm.cpp, decoder.cpp) and activation planning know layers only through this interface.
class Block {
 public:
  virtual ~Block() = default;
  /// Takes its tensors from `plan`. The last layer is planned first, gets no `last` and keeps
  /// everything; the other layers share its tensors for what they need not keep. Parts that not
  /// all layers have, MLP or experts, are shared with `alike` instead, the last layer of this kind,
  /// which gets no `alike` itself and keeps all of that part.
  virtual void plan(ArenaAllocator& plan, const PassShape& pass,
                    ActivationCheckpointing checkpointing, const Block* last,
                    const Block* alike) = 0;
  /// Returns the residual stream on input, (M', D').
  virtual Tensor input() const = 0;
  virtual CacheColumns cache_columns() const = 0;
  /// Returns the layer's output; its delta is ctx.delta.
  virtual Residual forward(const BlockContext& ctx, const Residual& in) = 0;
  /// Turns ctx.d_residual from the gradient of the layer's output into that of its input, and
  /// writes its weight gradients. Call once after a forward pass.
  virtual void backward(const BlockContext& ctx) = 0;
};

}  // namespace llamesh::model
