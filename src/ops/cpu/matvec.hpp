#pragma once

#include "core/accumulate.hpp"
#include "core/tensor.hpp"

namespace llamesh::ops::cpu {

/// y = or += x w^T as ops::linear, for a single row of x. It is bound by reading w, which this does
/// once and in order; GEMM libraries do it at half the memory's speed or less.
void matvec(Tensor y, Tensor x, Tensor w, Accumulate accumulate);

}  // namespace llamesh::ops::cpu
