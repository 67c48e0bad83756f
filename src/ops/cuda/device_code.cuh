#pragma once

/// What every kernel is written with. Under nvcc it is CUDA with a few lines of PTX; with
/// LLAMESH_CUDA_EMULATED the same sources are plain C++ over tests/emulator, which needs neither a
/// GPU nor the toolkit.
#ifdef LLAMESH_CUDA_EMULATED
#include "emulated_target.hpp"
// A name of its own, so that one program may hold both.
#define LLAMESH_OPS_CUDA llamesh::ops::cuda::inline emulated
#else
#include "ops/cuda/cuda_target.cuh"
#define LLAMESH_OPS_CUDA llamesh::ops::cuda
#endif
