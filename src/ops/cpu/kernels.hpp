#pragma once

#include "ops/ops.hpp"

/// The kernels of ops.hpp on the CPU.
namespace llamesh::ops::cpu {
#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL
}  // namespace llamesh::ops::cpu
