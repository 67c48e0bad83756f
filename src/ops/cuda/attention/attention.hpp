#pragma once

#include "ops/cuda/kernels.hpp"

/// The attention kernels behind ops::cuda::attention(): one kind for any head dim and type, two of
/// bf16 on tensor cores.
namespace LLAMESH_OPS_CUDA {

/// What a call of attention() or attention_backward() works on.
struct AttentionCall {
  Tensor q, k, v, out;        ///< as in ops.hpp
  Tensor dq, dk, dv, dout;    ///< backward only
  Tensor log_sum_exp, delta;  ///< delta: backward only
  Tensor document_starts;     ///< may be empty
  AttentionShape shape;
};

/// Any head dim up to this.
inline constexpr std::int64_t max_head_dim = 256;
void plain_attention(Stream& stream, const AttentionCall& call);
void plain_attention_backward(Stream& stream, const AttentionCall& call);

/// delta (B, H, T) = rowsum(dout * out).
void attention_delta(Stream& stream, const AttentionCall& call);

/// bf16, head dim 64 or 128, rows at multiples of 16 bytes.
bool can_use_mma(const AttentionCall& call);
void mma_attention(Stream& stream, const AttentionCall& call);
void mma_attention_backward(Stream& stream, const AttentionCall& call);
/// The same by instructions of warpgroups, which Hopper has, if this build has code for it, and
/// unless LLAMESH_ATTENTION=mma.
bool can_use_wgmma(const AttentionCall& call);
void wgmma_attention(Stream& stream, const AttentionCall& call);
void wgmma_attention_backward(Stream& stream, const AttentionCall& call);

}  // namespace LLAMESH_OPS_CUDA
