#pragma once

#include "ops/cuda/device_code.cuh"

/// Sums and maxima over a warp and a block, always in the same order.
namespace LLAMESH_OPS_CUDA {

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  LLAMESH_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

/// The sum over the block, in every thread. `shared` holds a number a warp and is free again after
/// the next barrier.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  x = warp_sum(x);
  if (thread_x() % 32 == 0) shared[thread_x() / 32] = x;
  sync_threads();
  T total = 0;
  for (int warp = 0; warp < threads_x() / 32; ++warp) total += shared[warp];
  return total;
}

/// The largest number of the block, in every thread, likewise.
__device__ __forceinline__ float block_max(float x, float* shared) {
  LLAMESH_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = most_of(x, shuffle_xor(x, mask));
  if (thread_x() % 32 == 0) shared[thread_x() / 32] = x;
  sync_threads();
  float most = shared[0];
  for (int warp = 1; warp < threads_x() / 32; ++warp) most = most_of(most, shared[warp]);
  return most;
}

}  // namespace LLAMESH_OPS_CUDA
