#pragma once

#include <cuda_runtime_api.h>

#include "core/tensor.hpp"

namespace llamesh::comm::nccl {

/// Copies `from` to `to`, cast to its dtype (fp32 or bf16); does nothing if they are the same
/// memory.
void convert(cudaStream_t stream, const Tensor& to, const Tensor& from);
/// Adds addend (fp32 or bf16) to sum (fp32).
void accumulate(cudaStream_t stream, const Tensor& sum, const Tensor& addend);

}  // namespace llamesh::comm::nccl
