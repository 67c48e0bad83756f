#pragma once

#include <functional>
#include <vector>

#include "core/dtype.hpp"
#include "device/stream.hpp"

namespace llamesh::ops {

/// FLOP/s of products of two random square matrices by linear(), on the current threads (512 x 512,
/// from 8 threads on 1024 x 1024) or on a GPU (8192 x 8192 where it has the memory): in each of 5
/// windows of 20 ms, one after the other. `begin` is called before the first one: ranks that meet
/// there have the same windows, and the sum over ranks in one window is what they have together,
/// also where they share cores. Other work makes it too low, so the best window counts. On a CPU
/// what these products need of scratch memory is kept.
std::vector<double> measured_gemm_rates(DType dtype, const std::function<void()>& begin);

/// The number of rows and columns of these matrices on a device of this kind with so many bytes of
/// memory, of which they take a 16th at most.
std::int64_t measured_gemm_size(device::Kind kind, double memory_bytes);

}  // namespace llamesh::ops
