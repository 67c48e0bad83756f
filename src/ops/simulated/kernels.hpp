#pragma once

#include "ops/ops.hpp"

/// The kernels of ops.hpp on a simulated device: each is the time that it takes on the hardware of
/// the current device::Simulation, the larger one of its FLOPs over what it reaches of the peak and
/// its bytes over the memory's bandwidth, and the time to launch it.
namespace llamesh::ops::simulated {
#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL
}  // namespace llamesh::ops::simulated
