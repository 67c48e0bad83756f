#pragma once

#include "ops/cuda/kernels.hpp"

namespace llamesh::ops::cuda {
/// Shared-memory alignment in bytes: start of a block's shared memory, and what wgmma requires for
/// tiles in it.
constexpr int shared_alignment = 1024;
}  // namespace llamesh::ops::cuda

/// Environment for all kernels: CUDA and a few lines of PTX. With LLAMESH_CUDA_EMULATED the same
/// sources compile as C++ against tests/cuda_emulator, which defines CUDA's names on the host and
/// needs neither a GPU nor the toolkit.
#ifdef LLAMESH_CUDA_EMULATED
// From tests/cuda_emulator.
#include <emulated_intrinsics.hpp>
#include <emulated_launch.hpp>
#include <emulated_mma.hpp>
#include <emulated_wgmma.hpp>
#else
#include "ops/cuda/intrinsics.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/wgmma.cuh"
#endif
