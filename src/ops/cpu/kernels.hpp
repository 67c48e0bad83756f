#pragma once

#include "ops/ops.hpp"

/// Declarations of the ops.hpp kernels for the CPU.
namespace llamesh::ops::cpu {
#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#define LLAMESH_CPU_KERNEL LLAMESH_KERNEL
#include "ops/kernels.inc"
#undef LLAMESH_CPU_KERNEL
#undef LLAMESH_KERNEL
}  // namespace llamesh::ops::cpu
