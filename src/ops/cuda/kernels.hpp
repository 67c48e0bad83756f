#pragma once

#include <string>

#include "ops/ops.hpp"

// Under the emulator (tests/emulator) they have a name of their own, so that one program may hold
// both.
#ifdef LLAMESH_CUDA_EMULATED
#define LLAMESH_OPS_CUDA llamesh::ops::cuda::inline emulated
#else
#define LLAMESH_OPS_CUDA llamesh::ops::cuda
#endif

/// The kernels of ops.hpp on a GPU. Nothing waits for the stream but sum_of_squares(). A token
/// below zero or a target beyond the vocabulary stops the device with an error that the next wait
/// for the stream reports.
/// Results are the same in every run: no sum is taken in an order that may change.
///
/// State: all but the linear layers and the attention by cuDNN have run under the emulator against
/// the CPU's, and compile for sm_80 and sm_90a. None has run on a GPU yet, so no time has been
/// measured.
namespace LLAMESH_OPS_CUDA {
#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL

/// "cuDNN 9.19.0", or "built-in kernels" and why. Throws nothing.
std::string attention_library();
}  // namespace LLAMESH_OPS_CUDA
