#pragma once

#include "ops/cuda/device_code.cuh"

/// Warp and block sums and maxima, always in the same order.
namespace LLAMESH_OPS_CUDA {

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(full_warp, x, mask);
  return x;
}

/// Returns the block's sum in every thread. `shared` holds one element per warp and is free again
/// after the next barrier.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  const int warps = blockDim.x / 32;
  T total = 0;
  for (int warp = 0; warp < warps; ++warp) total += shared[warp];
  return total;
}

__device__ __forceinline__ float larger(float a, float b) {
  return fmaxf(a, b);
}
__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return a > b ? a : b;
}

/// Returns the block's maximum in every thread, with the same use of `shared`.
template <class T>
__device__ __forceinline__ T block_max(T x, T* shared) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = larger(x, __shfl_xor_sync(full_warp, x, mask));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  const int warps = blockDim.x / 32;
  T most = shared[0];
  for (int warp = 1; warp < warps; ++warp) most = larger(most, shared[warp]);
  return most;
}

}  // namespace LLAMESH_OPS_CUDA
