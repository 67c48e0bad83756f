#pragma once

#include <string>

#include "ops/ops.hpp"

// Under the emulator (tests/cuda_emulator) they have a separate namespace, so that one program can
// hold both.
#ifdef LLAMESH_CUDA_EMULATED
#define LLAMESH_OPS_CUDA llamesh::ops::cuda::inline emulated
#else
#define LLAMESH_OPS_CUDA llamesh::ops::cuda
#endif

/// Declarations of the ops.hpp kernels for a GPU. Only reductions to a number wait for the stream.
/// A negative token, a target beyond the vocabulary, an expert that does not exist, or wrong starts
/// of experts trap; the next wait for the stream reports the error.
///
/// Results are identical in every run: no sum depends on a variable order.
///
/// docs/gpu-results.md says which of them have run on a GPU, and how fast.
namespace LLAMESH_OPS_CUDA {
#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL

/// Returns "cuDNN 9.19.0", or "built-in kernels" and the reason. Never throws.
std::string attention_library();
}  // namespace LLAMESH_OPS_CUDA
