#pragma once

#include "ops/cuda/intrinsics.cuh"

/// Shared memory by address, asynchronous copies and matrix instructions, in PTX.
namespace llamesh::ops::cuda {

using SharedAddress = std::uint32_t;

__device__ __forceinline__ SharedAddress shared_address(const void* at) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(at));
}
__device__ __forceinline__ Words4 ld_shared_v4(SharedAddress from) {
  Words4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "r"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ void st_shared(SharedAddress to, std::uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

/// from ^ bits, computed again each time: kept in registers, the many addresses of an unrolled loop
/// would leave too few for the sums.
__device__ __forceinline__ SharedAddress rematerialized_xor(SharedAddress from,
                                                            SharedAddress bits) {
  SharedAddress to;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(to) : "r"(from), "r"(bits));
  return to;
}

/// Starts to copy 16 bytes to shared memory, or zeros where not `valid` (`from` is then not read).
__device__ __forceinline__ void cp_async_16(SharedAddress to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
/// Closes a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `open` groups of this thread are on their way. Other threads see the bytes
/// after the next barrier.
template <int open>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}

/// Four 8 x 8 matrices of bf16; lane i gives the address of row i % 8 of matrix i / 8, and gets of
/// each matrix row i / 4, columns 2 (i % 4) and the next.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&to)[4], SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
/// The same of their transposes.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&to)[4], SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// c (16, 8) += a (16, 16) b (16, 8), bf16 with fp32 sums. Lane i holds, with g = i / 4 and
/// t = 2 (i % 4): c at rows g (two), g + 8 (two), columns t, t + 1; a at (g, t), (g + 8, t),
/// (g, t + 8), (g + 8, t + 8), two columns each; b at rows t and t + 8, two rows each, column g.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace llamesh::ops::cuda
