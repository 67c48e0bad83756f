#pragma once

#include <string>

#include "ops/cuda/attention/attention.hpp"

/// Attention by cuDNN, if it is built in (LLAMESH_HAS_CUDNN; otherwise cudnn_attention_absent.cpp
/// replaces it) and can be loaded. The built-in kernels handle everything else.
namespace LLAMESH_OPS_CUDA {

/// Returns true if cuDNN takes this pass (backward if there are gradients), once tries_cudnn() says
/// to try it: bf16, one document per row, head dim a multiple of 8 up to 128, 16-byte aligned rows,
/// gradients laid out like their tensors, and cuDNN has a graph for it. The answer is constant per
/// shape, dtype and layout. The first such call makes cuDNN's plan, which takes seconds, and its
/// scratch, which may be B H T^2 bf16 elements for the backward pass. If that exceeds 1/16 of GPU
/// memory, the built-in kernels are used.
///
/// With LLAMESH_ATTENTION=cudnn it is a user error if cuDNN is missing or refuses such a call.
bool can_use_cudnn(const AttentionCall& call, const AttentionGradients& gradients = {});
/// Does not write gradients.delta.
void cudnn_attention(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients = {});

}  // namespace LLAMESH_OPS_CUDA
