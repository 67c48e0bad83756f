#pragma once

#include "ops/cuda/kernels.hpp"

/// Attention kernels behind ops::cuda::attention(): untiled ones for any head dim and dtype, two
/// kinds for bf16 on tensor cores.
namespace LLAMESH_OPS_CUDA {

/// Largest supported dims in a head's keys and values.
inline constexpr std::int64_t max_head_dim = 256;
void plain_attention(Stream& stream, const AttentionCall& call);
void plain_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients);

/// delta (B, H, T) = rowsum(dout * out).
void attention_delta(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients);

/// Returns true for bf16, head dim 64 or 128, or 192 with values of 128, and 16-byte aligned rows,
/// unless a backward pass needs more shared memory than the GPU has. For the forward pass, omit
/// `gradients`.
bool can_use_mma(const AttentionCall& call, const AttentionGradients& gradients = {});
void mma_attention(Stream& stream, const AttentionCall& call);
void mma_attention_backward(Stream& stream, const AttentionCall& call,
                            const AttentionGradients& gradients);
/// Returns false for head dims 128 and 192 on GPUs with 99 KiB of shared memory per block (compute
/// capability 8.6, 8.9 and 12.0).
bool mma_attention_backward_fits(std::int64_t head_dim);
/// Like can_use_mma(), for warpgroup instructions: also requires Hopper, a build with code for it,
/// values as wide as keys, no softcap, and LLAMESH_ATTENTION not set to mma.
bool can_use_wgmma(const AttentionCall& call, const AttentionGradients& gradients = {});
void wgmma_attention(Stream& stream, const AttentionCall& call);
void wgmma_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients);

}  // namespace LLAMESH_OPS_CUDA
