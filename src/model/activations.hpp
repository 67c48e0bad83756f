#pragma once

#include <vector>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "model/llama_config.hpp"
#include "model/memory_options.hpp"

/// B batch, T sequence, M = B T tokens, D hidden, H heads, K kv heads, E head dim, F intermediate,
/// V vocabulary.
namespace llamesh::model {

/// What a layer's forward pass leaves for its backward pass.
struct BlockActivations {
  /// What of it is not kept, but computed again in the backward pass.
  ActivationCheckpointing checkpointing;

  Tensor input;          ///< (M, D) the residual stream as it comes in
  Tensor input_rms;      ///< (M) fp32, 1 / root mean square of input
  Tensor normed_input;   ///< (M, D)
  Tensor qkv;            ///< (M, (H + 2 K) E), q and k rotated
  Tensor attention;      ///< (M, H E)
  Tensor log_sum_exp;    ///< (B, H, T) fp32
  Tensor middle;         ///< (M, D) the residual stream between attention and MLP
  Tensor middle_rms;     ///< (M) fp32
  Tensor normed_middle;  ///< (M, D)
  Tensor gate_up;        ///< (M, 2 F); the backward pass overwrites it by its gradient
  Tensor swiglu;         ///< (M, F)
};

/// Space that every layer uses in turn.
struct Scratch {
  Tensor delta;  ///< (M, D) what attention or MLP adds to the residual stream; gradients of norms'
                 ///< outputs
  Tensor d_residual;   ///< (M, D) gradient of the residual stream, handed from layer to layer
  Tensor d_swiglu;     ///< (M, F)
  Tensor d_attention;  ///< (M, H E)
  Tensor d_qkv;        ///< (M, (H + 2 K) E)
  Tensor d_softmax;    ///< (B, H, T) fp32
  Tensor logits;       ///< (loss_chunk, V)
  Tensor losses;       ///< (M) fp32
  Tensor last;         ///< (M, D) the residual stream after the last layer
  Tensor last_rms;     ///< (M) fp32
  Tensor normed_last;  ///< (M, D)
};

/// Every intermediate of a step of one micro-batch, planned once in one buffer. By the
/// checkpointing options, layers have tensors of their own or use the last layer's for what is
/// computed again. The last layer keeps everything: nobody writes there between its forward and its
/// backward pass, so computing it again would save no memory.
struct Activations {
  Activations(const LlamaConfig& config, std::int64_t batch, std::int64_t sequence,
              const MemoryOptions& memory, DType dtype);

  std::vector<BlockActivations> blocks;
  Scratch scratch;
  device::Buffer buffer;  ///< counted as in use only while a step claims it
};

}  // namespace llamesh::model
