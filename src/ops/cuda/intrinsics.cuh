#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

/// What CUDA has no name for, in PTX or a line of C++. tests/emulator/emulated_intrinsics.hpp
/// defines the same and, for the host, the names of CUDA's own that the kernels use.
namespace llamesh::ops::cuda {

/// All lanes of a warp, for __shfl_xor_sync().
inline constexpr unsigned full_warp = 0xFFFFFFFFU;

/// threadIdx.x, read again at each call, so that what is computed from it need not stay in
/// registers between its uses.
__device__ __forceinline__ int rematerialized_thread_x() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Two values rounded to nearest even, `low` in the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// 2^x to about 2 ulp of fp32, which is far below the rounding to bf16.
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
/// One access of 8 or 16 bytes; the address is a multiple of that.
template <class Words>
__device__ __forceinline__ Words load_words(const void* from) {
  return *static_cast<const Words*>(from);
}
template <class Words>
__device__ __forceinline__ void store_words(void* to, Words words) {
  *static_cast<Words*>(to) = words;
}

extern __shared__ __align__(shared_alignment) unsigned char llamesh_shared_memory[];

/// The block's dynamic shared memory, as large as the launch says. There is no other.
template <class T>
__device__ __forceinline__ T* dynamic_shared_memory() {
  return reinterpret_cast<T*>(llamesh_shared_memory);
}

}  // namespace llamesh::ops::cuda
