#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>

#include "device/stream.hpp"

namespace llamesh::device::cuda {

/// Throws with CUDA's error message if a call failed: a user error if memory ran out, "stopped
/// early" if the GPU is at fault, otherwise an internal error. Kernel failures surface in a later
/// call.
void check(cudaError_t result, const char* what,
           std::source_location where = std::source_location::current());

/// Throws the user error for a GPU allocation of `bytes` that does not fit.
[[noreturn]] void throw_out_of_memory(std::int64_t bytes);

/// Selects this process's device on the calling thread, which otherwise uses the first GPU and may
/// create a context there. Cheap after a thread's first call.
void attach_thread();

/// Returns the CUDA stream behind a GPU stream.
cudaStream_t native(const Stream& stream);

}  // namespace llamesh::device::cuda
