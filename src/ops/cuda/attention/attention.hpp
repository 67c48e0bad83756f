#pragma once

#include "ops/cuda/kernels.hpp"

/// The attention kernels behind ops::cuda::attention(): one kind for any head dim and type, two of
/// bf16 on tensor cores.
namespace LLAMESH_OPS_CUDA {

/// Any head dim up to this.
inline constexpr std::int64_t max_head_dim = 256;
void plain_attention(Stream& stream, const AttentionCall& call);
void plain_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients);

/// delta (B, H, T) = rowsum(dout * out).
void attention_delta(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients);

/// bf16, head dim 64 or 128, rows at multiples of 16 bytes. In the forward pass there are no
/// gradients.
bool can_use_mma(const AttentionCall& call, const AttentionGradients& gradients = {});
void mma_attention(Stream& stream, const AttentionCall& call);
void mma_attention_backward(Stream& stream, const AttentionCall& call,
                            const AttentionGradients& gradients);
/// The same by instructions of warpgroups, which Hopper has, if this build has code for it, and
/// unless LLAMESH_ATTENTION=mma.
bool can_use_wgmma(const AttentionCall& call, const AttentionGradients& gradients = {});
void wgmma_attention(Stream& stream, const AttentionCall& call);
void wgmma_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients);

}  // namespace LLAMESH_OPS_CUDA
