#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>

#include "device/stream.hpp"

namespace llamesh::device::cuda {

/// Throws with CUDA's own text when a call failed: a user error where memory ran out, "stopped
/// early" where the GPU itself is at fault, else an internal error. A kernel's failure shows in a
/// later call.
void check(cudaError_t result, const char* what,
           std::source_location where = std::source_location::current());

/// Throws the user error that the GPU has no room for so many bytes.
[[noreturn]] void throw_out_of_memory(std::int64_t bytes);

/// The CUDA stream behind a stream of the GPU.
cudaStream_t native(const Stream& stream);

}  // namespace llamesh::device::cuda
