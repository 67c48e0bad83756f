#pragma once

#include "ops/cuda/kernels.hpp"

namespace llamesh::ops::cuda {
/// Where the block's shared memory begins, and what wgmma wants of the tiles in it, in bytes.
constexpr int shared_alignment = 1024;
}  // namespace llamesh::ops::cuda

/// What every kernel is written with: CUDA and a few lines of PTX. With LLAMESH_CUDA_EMULATED the
/// same sources are C++ over tests/emulator, which defines CUDA's names for the host and needs
/// neither a GPU nor the toolkit.
#ifdef LLAMESH_CUDA_EMULATED
// Of tests/emulator.
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
