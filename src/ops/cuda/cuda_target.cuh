#pragma once

#include <cuda_runtime.h>

#include <cstdint>

/// The few things of CUDA that the kernels use, each with its counterpart in tests/emulator
/// (emulated_target.hpp, emulated_matrix.hpp, emulated_host.hpp).

#define LLAMESH_UNROLL _Pragma("unroll")
#define LLAMESH_NO_UNROLL _Pragma("unroll 1")

namespace llamesh::ops::cuda {

// --- Where a thread stands ---

__device__ __forceinline__ int thread_x() {
  return static_cast<int>(threadIdx.x);
}
/// The same, read anew each time, so that what is computed from it does not hold registers for
/// longer than it is used.
__device__ __forceinline__ int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
__device__ __forceinline__ int threads_x() {
  return static_cast<int>(blockDim.x);
}
__device__ __forceinline__ int block_x() {
  return static_cast<int>(blockIdx.x);
}
__device__ __forceinline__ int block_y() {
  return static_cast<int>(blockIdx.y);
}
__device__ __forceinline__ int block_z() {
  return static_cast<int>(blockIdx.z);
}
__device__ __forceinline__ int grid_x() {
  return static_cast<int>(gridDim.x);
}
__device__ __forceinline__ int grid_y() {
  return static_cast<int>(gridDim.y);
}

// --- Threads together ---

__device__ __forceinline__ void sync_threads() {
  __syncthreads();
}
__device__ __forceinline__ void sync_warp() {
  __syncwarp();
}
/// The value of the lane whose number differs by `mask`. All lanes take part.
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}
/// Stops the kernel with an error, which the next wait for the stream reports, unless `ok`.
__device__ __forceinline__ void require(bool ok) {
  if (!ok) __trap();
}

// --- Bits ---

__device__ __forceinline__ float float_of_bits(std::uint32_t bits) {
  return __uint_as_float(bits);
}
/// Two numbers rounded to nearest even, `low` in the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// --- Arithmetic. The fast ones are good to about 2 ulp where bf16 needs 2^16 of them. ---

__device__ __forceinline__ float exp_fast(float x) {
  return __expf(x);
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float divide_fast(float a, float b) {
  return __fdividef(a, b);
}
__device__ __forceinline__ float exp_of(float x) {
  return expf(x);
}
__device__ __forceinline__ float log_of(float x) {
  return logf(x);
}
__device__ __forceinline__ float sqrt_of(float x) {
  return sqrtf(x);
}
__device__ __forceinline__ float most_of(float a, float b) {
  return fmaxf(a, b);
}
__device__ __forceinline__ float infinity() {
  return __int_as_float(0x7F800000);
}

// --- Memory ---

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

extern __shared__ __align__(1024) unsigned char llamesh_shared_memory[];

/// The block's shared memory, as large as the launch says. There is no other.
template <class T>
__device__ __forceinline__ T* shared_memory() {
  return reinterpret_cast<T*>(llamesh_shared_memory);
}

}  // namespace llamesh::ops::cuda
