#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

/// PTX that CUDA has no intrinsic for, and small C++ helpers.
/// tests/cuda_emulator/emulated_intrinsics.hpp defines the same for the host, plus the CUDA
/// intrinsics that the kernels use.
namespace llamesh::ops::cuda {

/// Mask for all lanes in a warp, for __shfl_xor_sync().
inline constexpr unsigned full_warp = 0xFFFFFFFFU;

/// Reads threadIdx.x anew at each call, so that values derived from it need not stay in registers.
__device__ __forceinline__ int rematerialized_thread_x() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Rounds two values to nearest even; `low` goes into the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Returns 2^x to about 2 fp32 ulp, far below bf16 rounding.
__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct alignas(16) Words4 {
  std::uint32_t w[4];
};
struct alignas(8) Words2 {
  std::uint32_t w[2];
};
struct alignas(4) Words1 {
  std::uint32_t w[1];
};
/// Loads 4, 8 or 16 bytes at once, like store_words(). The address must be aligned to that size.
template <class Words>
__device__ __forceinline__ Words load_words(const void* from) {
  return *static_cast<const Words*>(from);
}
template <class Words>
__device__ __forceinline__ void store_words(void* to, Words words) {
  *static_cast<Words*>(to) = words;
}

extern __shared__ __align__(shared_alignment) unsigned char llamesh_shared_memory[];

/// Returns the block's dynamic shared memory, sized by the launch. Kernels use no static shared
/// memory.
template <class T>
__device__ __forceinline__ T* dynamic_shared_memory() {
  return reinterpret_cast<T*>(llamesh_shared_memory);
}

}  // namespace llamesh::ops::cuda
