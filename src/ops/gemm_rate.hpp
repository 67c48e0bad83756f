#pragma once

#include <functional>
#include <vector>

#include "core/dtype.hpp"
#include "device/stream.hpp"

namespace llamesh::ops {

/// Measures linear() on two random square matrices, on the current threads (512 x 512, or 1024 x
/// 1024 from 8 threads on) or on a GPU (8192 x 8192 if memory allows). Returns FLOP/s in each of 5
/// consecutive windows of 20 ms. Calls `begin` before the first window: ranks that synchronize
/// there have the same windows, so the sum over ranks in one window is their combined rate, even if
/// they share cores. Other work only lowers the rate, so the best window counts. On a CPU the
/// scratch memory stays allocated.
std::vector<double> measured_gemm_rates(DType dtype, const std::function<void()>& begin);

/// Returns the number of rows and columns for these matrices on a device with `memory_bytes`, 1/16
/// of which they may take.
std::int64_t measured_gemm_size(device::Kind kind, double memory_bytes);

}  // namespace llamesh::ops
