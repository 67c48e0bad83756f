#pragma once

#include "ops/cuda/kernels.hpp"

/// What every kernel is written with. Under nvcc it is CUDA with a few lines of PTX; with
/// LLAMESH_CUDA_EMULATED the same sources are plain C++ over tests/emulator, which needs neither a
/// GPU nor the toolkit.
#ifdef LLAMESH_CUDA_EMULATED
#include <emulated_target.hpp>  // tests/emulator
#else
#include "ops/cuda/cuda_target.cuh"
#endif
