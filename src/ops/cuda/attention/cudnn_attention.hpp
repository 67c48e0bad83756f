#pragma once

#include <string>

#include "ops/cuda/attention/attention.hpp"

/// Attention by cuDNN, where it is built in (LLAMESH_HAS_CUDNN; else cudnn_attention_absent.cpp
/// stands in) and can be loaded. The built-in kernels do what it cannot, and all where there is
/// none.
namespace LLAMESH_OPS_CUDA {

/// Whether cuDNN takes this pass, the backward one where there are gradients: bf16, a row one
/// document, head dim up to 128 and a multiple of 8, rows at multiples of 16 bytes, gradients laid
/// as what they are of, and cuDNN has a graph of it. The same for one shape, dtype and layout. The
/// first call of its kind makes cuDNN's plan, which takes seconds, and its scratch, which for the
/// backward pass B H T^2 bf16 elements may be. What wants more scratch than a sixteenth of the GPU,
/// or than is free, is left to the built-in kernels.
///
/// With LLAMESH_ATTENTION=cudnn a cuDNN that is missing or refuses such a call is a user error.
bool can_use_cudnn(const AttentionCall& call, const AttentionGradients& gradients = {});
/// Leaves gradients.delta as it is.
void cudnn_attention(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients = {});

}  // namespace LLAMESH_OPS_CUDA
