#pragma once

#include "ops/ops.hpp"

/// Declarations of the ops.hpp kernels for the CPU.
namespace llamesh::ops::cpu {
#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL
}  // namespace llamesh::ops::cpu
