#pragma once

#include "core/dtype.hpp"

namespace llamesh::ops {

/// FLOP/s of products of two random square matrices by linear() over 0.2 s: 1024 x 1024 on the
/// current threads, 8192 x 8192 on a GPU. The yardstick of MFU: measured by all ranks at once, it
/// is what they have together.
double measured_gemm_rate(DType dtype);

}  // namespace llamesh::ops
