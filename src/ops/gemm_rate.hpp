#pragma once

#include "core/dtype.hpp"

namespace llamesh::ops {

/// FLOP/s of products of two random 1024 x 1024 matrices by linear() on the current threads, over
/// 0.2 s. The yardstick of MFU on CPUs: measured by all ranks at once, it is what they have
/// together.
double measured_gemm_rate(DType dtype);

}  // namespace llamesh::ops
