#pragma once

#include "core/dtype.hpp"

namespace llamesh::ops {

/// FLOP/s of products of two random square matrices by linear() over 0.2 s: 1024 x 1024 on the
/// current threads, 8192 x 8192 on a GPU. The yardstick of MFU: measured by all ranks at once, it
/// is what they have together.
double measured_gemm_rate(DType dtype);

/// How many of a library's algorithms for a shape can be asked for: 1 on the CPU.
int gemm_candidates();
/// For benchmarks: products take the library's `candidate`th choice from now on, or the last that
/// it has. 0, its first, is what training takes.
void use_gemm_candidate(int candidate);

}  // namespace llamesh::ops
