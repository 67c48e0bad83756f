#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/llama_config.hpp"
#include "model/memory_options.hpp"
#include "model/planner.hpp"
#include "model/tensor_parallel.hpp"
#include "model/weights.hpp"

/// B batch, T sequence, M = B T tokens, D hidden, (M', D') the part of the residual stream (M, D)
/// that this rank holds (all of it without tensor parallelism), E head dim, K kv heads.
namespace llamesh::model {

/// The residual stream as a sum that nobody has added up yet: the next norm does it in passing.
struct Residual {
  Tensor x;      ///< (M', D')
  Tensor delta;  ///< (M', D'), or empty
};

/// Keys and values of the tokens before those of a pass, for inference.
struct KvCache {
  std::vector<Tensor> keys;    ///< by layer: (positions, K E)
  std::vector<Tensor> values;  ///< by layer
  std::int64_t past = 0;       ///< tokens in it
};

/// What every layer of a pass is given.
struct BlockContext {
  device::Stream& stream;
  Weights& weights;
  TensorParallel& tensor;
  const LlamaConfig& config;  ///< of this rank's part of each layer
  Pass pass;                  ///< of the forward functions: evaluate, forward or recompute
  std::int64_t batch;         ///< B
  std::int64_t sequence;      ///< T
  Tensor cos_sin;             ///< (T, E) fp32
  Tensor document_starts;     ///< (B, T) int32, or empty
  /// (M', D') what attention or MLP adds to the residual stream; gradients of norms' outputs.
  Tensor delta;
  Tensor d_residual;  ///< (M', D') gradient of the residual stream, handed from layer to layer
  Tensor row_sums;    ///< fp32 scratch of norms where ranks have columns, an element a row and rank
  KvCache* cache = nullptr;  ///< with it, the pass is of one text that follows what is in there
};

/// The first of the classes of the vocabulary that this rank has.
inline std::int64_t first_class(const BlockContext& x) {
  return x.tensor.rank() * x.config.vocab_size;
}

/// What passes are for. Each needs all that the one before it needs, and more.
enum class Purpose : std::uint8_t {
  generate,  ///< forward alone; the caller computes the logits that it wants
  evaluate,  ///< forward and loss: no layer keeps anything
  train,     ///< forward, loss and backward
};

/// What the tensors of a pass are sized by.
struct PassShape {
  std::int64_t batch;                   ///< B
  std::int64_t sequence;                ///< T
  TensorParallel::MatrixSize residual;  ///< (M', D')
  int tensor_ranks;                     ///< among which the layers' matrices are cut
  DType dtype;
  Purpose purpose;
  std::int64_t tokens() const { return batch * sequence; }
  bool has_loss() const { return purpose != Purpose::generate; }
  bool has_backward() const { return purpose == Purpose::train; }
};

/// A decoder layer of one kind, with what it keeps from its forward to its backward pass. The
/// model's passes (llama.cpp, decoder.cpp) and the planning of activations know layers by this
/// alone.
class Block {
 public:
  virtual ~Block() = default;
  /// Takes its tensors out of `plan`. The last layer, planned first, keeps all and is given no
  /// `last`; the others share with it what they need not keep.
  virtual void plan(Planner& plan, const PassShape& pass, ActivationCheckpointing checkpointing,
                    const Block* last) = 0;
  /// (M', D') the residual stream as it comes in.
  virtual Tensor input() const = 0;
  /// Returns the layer's output; its delta is x.delta.
  virtual Residual forward(const BlockContext& x, const Residual& in) = 0;
  /// Turns x.d_residual from the gradient of the layer's output into that of its input, and writes
  /// the gradients of its weights. Comes once after a forward pass.
  virtual void backward(const BlockContext& x) = 0;
};

/// Layer `index` of a model whose part on this rank is `config`.
std::unique_ptr<Block> make_block(const LlamaConfig& config, const ParameterTable& table,
                                  std::size_t index);

}  // namespace llamesh::model
