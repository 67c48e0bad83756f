#pragma once

#include "core/accumulate.hpp"
#include "core/tensor.hpp"

namespace llamesh::ops::cpu {

/// Up to this many rows of x a linear layer is bound by reading its weight, which GEMM libraries do
/// at half the memory's speed or less.
inline constexpr std::int64_t most_few_rows = 4;

/// y = or += x w^T as ops::linear, reading each number of w once and in order.
void linear_of_few_rows(Tensor y, Tensor x, Tensor w, Accumulate accumulate);

}  // namespace llamesh::ops::cpu
