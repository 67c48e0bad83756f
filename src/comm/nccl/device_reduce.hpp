#pragma once

#include <cuda_runtime_api.h>

#include "core/tensor.hpp"

namespace llamesh::comm::nccl {

/// to = from, cast to its dtype (fp32 or bf16); nothing where they are the same memory.
void convert(cudaStream_t stream, const Tensor& to, const Tensor& from);
/// sum (fp32) += addend (fp32 or bf16).
void accumulate(cudaStream_t stream, const Tensor& sum, const Tensor& addend);

}  // namespace llamesh::comm::nccl
