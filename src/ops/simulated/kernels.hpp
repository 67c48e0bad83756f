#pragma once

#include "ops/ops.hpp"

/// Kernels from ops.hpp on a simulated device. Each costs max(FLOPs / reachable peak, bytes /
/// memory bandwidth) on the current device::Simulation's hardware, plus the launch time.
namespace llamesh::ops::simulated {
#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL
}  // namespace llamesh::ops::simulated
