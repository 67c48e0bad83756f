#pragma once

#include "ops/ops.hpp"

/// The kernels of ops.hpp on a GPU.
namespace llamesh::ops::cuda {
#include "ops/kernels.inc"
}  // namespace llamesh::ops::cuda
