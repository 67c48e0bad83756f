#pragma once

#include "ops/cuda/intrinsics.cuh"

/// PTX for shared-memory addresses, asynchronous copies and matrix instructions.
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

/// Returns from ^ bits, recomputed at each call: an unrolled loop has so many addresses that
/// keeping them in registers would leave too few for the accumulators.
__device__ __forceinline__ SharedAddress rematerialized_xor(SharedAddress from,
                                                            SharedAddress bits) {
  SharedAddress to;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(to) : "r"(from), "r"(bits));
  return to;
}

/// Starts copying 16 bytes to shared memory, or zeros if not `valid` (`from` is then not read).
__device__ __forceinline__ void cp_async_16(SharedAddress to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
/// Commits this thread's copies as a group.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `open` groups from this thread are in flight. Other threads see the data
/// after the next barrier.
template <int open>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}

/// Loads four 8 x 8 bf16 matrices. Lane i passes the address for row i % 8 in matrix i / 8. From
/// each matrix it receives row i / 4, columns 2 (i % 4) and 2 (i % 4) + 1.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&to)[4], SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
/// Like ldmatrix_x4(), transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&to)[4], SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// c (16, 8) += a (16, 16) b (16, 8), bf16 with fp32 accumulation. With g = i / 4 and t = 2 (i %
/// 4), lane i holds c at rows g (two) and g + 8 (two), columns t, t + 1; a at (g, t), (g + 8, t),
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
