#pragma once

#include "ops/ops.hpp"

/// The kernels of ops.hpp on the CPU.
namespace llamesh::ops::cpu {
#include "ops/kernels.inc"
}  // namespace llamesh::ops::cpu
