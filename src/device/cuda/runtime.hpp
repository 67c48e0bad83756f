#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

#include "device/stream.hpp"

namespace llamesh::device::cuda {

/// Throws with CUDA's own text when a call failed. A kernel's failure shows in a later call.
void check(cudaError_t result, const char* what,
           std::source_location where = std::source_location::current());

/// The CUDA stream behind a stream of the GPU.
cudaStream_t native(const Stream& stream);

}  // namespace llamesh::device::cuda
