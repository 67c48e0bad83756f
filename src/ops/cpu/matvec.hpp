#pragma once

#include "core/tensor.hpp"

namespace llamesh::ops::cpu {

/// y = or += x w^T like ops::linear, for a single row x. Bound by reading w, which this does once
/// and in order; GEMM libraries reach half the memory bandwidth or less.
void matvec(Tensor y, Tensor x, Tensor w, Accumulate accumulate);

}  // namespace llamesh::ops::cpu
