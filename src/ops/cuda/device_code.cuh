#pragma once

#include "ops/cuda/kernels.hpp"

/// What every kernel is written with. Under nvcc it is CUDA with a few lines of PTX; with
/// LLAMESH_CUDA_EMULATED the same sources are plain C++ over tests/emulator, which needs neither a
/// GPU nor the toolkit.
#ifdef LLAMESH_CUDA_EMULATED
// Of tests/emulator.
#include <emulated_host.hpp>
#include <emulated_matrix.hpp>
#include <emulated_target.hpp>
#include <emulated_warpgroup.hpp>
#else
#include "ops/cuda/cuda_host.cuh"
#include "ops/cuda/cuda_matrix.cuh"
#include "ops/cuda/cuda_target.cuh"
#include "ops/cuda/cuda_warpgroup.cuh"
#endif
