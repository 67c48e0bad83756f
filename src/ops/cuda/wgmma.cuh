#pragma once

#include "ops/cuda/mma.cuh"

/// Matrix products by a warpgroup (128 threads, starting at a multiple of 128), in PTX. wgmma
/// exists in sm_90a machine code only. Products run asynchronously once issued.
namespace llamesh::ops::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define LLAMESH_WGMMA(code) code
#else  // the host never launches it
#define LLAMESH_WGMMA(code) __trap()
#endif

/// Location of a factor in shared memory: panels of 64 elements by rows, 128-byte swizzled.
using MatrixDescriptor = std::uint64_t;

/// Describes a factor at `start` (a multiple of 16), with groups of eight rows 1024 bytes apart. If
/// the rows are not the inner dimension, panels are `panel_bytes` apart. `start` may skip 32, 64 or
/// 96 of a panel's 128 bytes, because swizzling uses the address.
__device__ __forceinline__ MatrixDescriptor matrix_descriptor(SharedAddress start,
                                                              int panel_bytes) {
  constexpr std::uint64_t swizzled_by_128 = std::uint64_t{1} << 62U;
  return swizzled_by_128 | std::uint64_t{1024 / 16} << 32U |
         static_cast<std::uint64_t>(panel_bytes / 16) << 16U | (start & 0x3FFFFU) >> 4U;
}
/// Returns the descriptor advanced by `bytes`.
__device__ __forceinline__ MatrixDescriptor advance(MatrixDescriptor from, int bytes) {
  return from + static_cast<std::uint64_t>(bytes / 16);
}

/// Makes this thread's shared-memory writes visible to products issued after the next barrier.
__device__ __forceinline__ void fence_proxy_async() {
  LLAMESH_WGMMA(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}
/// Call before issuing products: orders their register operands after this thread's writes.
__device__ __forceinline__ void wgmma_fence() {
  LLAMESH_WGMMA(asm volatile("wgmma.fence.sync.aligned;" ::: "memory"));
}
/// Overload for products that add to `sums` and read left factors from registers. Forces the
/// compiler to have both ready by then.
template <int n, int k>
__device__ __forceinline__ void wgmma_fence(float (&sums)[n][4], std::uint32_t (&left)[k][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i)
    asm volatile(""
                 : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]),
                   "+f"(sums[i][3])::"memory");
#pragma unroll
  for (int i = 0; i < k; ++i)
    asm volatile(""
                 : "+r"(left[i][0]), "+r"(left[i][1]), "+r"(left[i][2]),
                   "+r"(left[i][3])::"memory");
  wgmma_fence();
}
/// Commits the issued products as a group.
__device__ __forceinline__ void wgmma_commit_group() {
  LLAMESH_WGMMA(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"));
}
/// Waits until at most `open` groups are in flight. `sums` belong to a completed group. Until then
/// its sums, input registers and input memory must not be touched.
template <int open, int n>
__device__ __forceinline__ void wgmma_wait_group(float (&sums)[n][4]) {
  LLAMESH_WGMMA(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(open) : "memory"));
#pragma unroll
  for (int i = 0; i < n; ++i)  // keeps the compiler from using a sum early
    asm volatile(""
                 : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]),
                   "+f"(sums[i][3])::"memory");
}

/// Keeps the next wait behind the work that computes `sum`. ptxas hoists a wait above work that
/// does not depend on the products, but never above an earlier shared-memory store. This store
/// never executes, because the sum is not negative.
__device__ __forceinline__ void work_before_wait(float sum) {
  if (sum < 0.0F) st_shared(shared_address(llamesh_shared_memory), 0);
}
/// Overload for the work that computes left factors. No rounded number has all bits set, not even a
/// NaN.
template <int k>
__device__ __forceinline__ void work_before_wait(const std::uint32_t (&left)[k][4]) {
  constexpr std::uint32_t ones = 0xFFFFFFFFU;
  std::uint32_t in_all = ones;
#pragma unroll
  for (int i = 0; i < k; ++i) in_all &= left[i][0] & left[i][1] & left[i][2] & left[i][3];
  if (in_all == ones) st_shared(shared_address(llamesh_shared_memory), 0);
}

// --- The instruction for 64 and 128 columns ---

#define LLAMESH_SUM(c, i) "+f"((c)[i][0]), "+f"((c)[i][1]), "+f"((c)[i][2]), "+f"((c)[i][3])
#define LLAMESH_SUMS_8(c, i)                                                                    \
  LLAMESH_SUM(c, i), LLAMESH_SUM(c, (i) + 1), LLAMESH_SUM(c, (i) + 2), LLAMESH_SUM(c, (i) + 3), \
      LLAMESH_SUM(c, (i) + 4), LLAMESH_SUM(c, (i) + 5), LLAMESH_SUM(c, (i) + 6),                \
      LLAMESH_SUM(c, (i) + 7)
#define LLAMESH_0_TO_31                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLAMESH_32_TO_63                                                                       \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, "                                                                                      \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LLAMESH_PRODUCT(columns) "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 "

/// c (64, 8 n) = a (64, 16) b^T, or += if `add`. The rows of a and b (8 n, 16) are in shared
/// memory. Each warp has 16 rows of c, laid out as by mma_m16n8k16().
template <int n>
__device__ __forceinline__ void wgmma_ss(float (&c)[n][4], MatrixDescriptor a, MatrixDescriptor b,
                                         bool add) {
  static_assert(n == 8 || n == 16);
  if constexpr (n == 8)
    LLAMESH_WGMMA(asm volatile("{.reg .pred add; setp.ne.b32 add, %34, 0;" LLAMESH_PRODUCT(
                                   "64") "{" LLAMESH_0_TO_31 "}, %32, %33, add, 1, 1, 0, 0;}"
                               : LLAMESH_SUMS_8(c, 0)
                               : "l"(a), "l"(b), "r"(static_cast<int>(add))));
  else
    LLAMESH_WGMMA(asm volatile("{.reg .pred add; setp.ne.b32 add, %66, 0;" LLAMESH_PRODUCT(
                                   "128") "{" LLAMESH_0_TO_31 ", " LLAMESH_32_TO_63
                                          "}, %64, %65, add, 1, 1, 0, 0;}"
                               : LLAMESH_SUMS_8(c, 0), LLAMESH_SUMS_8(c, 8)
                               : "l"(a), "l"(b), "r"(static_cast<int>(add))));
}

/// c (64, 8 n) += a (64, 16) b (16, 8 n), with a in registers as for mma_m16n8k16(), b in shared
/// memory.
template <int n>
__device__ __forceinline__ void wgmma_rs(float (&c)[n][4], const std::uint32_t (&a)[4],
                                         MatrixDescriptor b) {
  static_assert(n == 8 || n == 16);
  if constexpr (n == 8)
    LLAMESH_WGMMA(asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0;" LLAMESH_PRODUCT(
                                   "64") "{" LLAMESH_0_TO_31
                                         "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;}"
                               : LLAMESH_SUMS_8(c, 0)
                               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)));
  else
    LLAMESH_WGMMA(asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0;" LLAMESH_PRODUCT(
                                   "128") "{" LLAMESH_0_TO_31 ", " LLAMESH_32_TO_63
                                          "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;}"
                               : LLAMESH_SUMS_8(c, 0), LLAMESH_SUMS_8(c, 8)
                               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)));
}

#undef LLAMESH_PRODUCT
#undef LLAMESH_32_TO_63
#undef LLAMESH_0_TO_31
#undef LLAMESH_SUMS_8
#undef LLAMESH_SUM

}  // namespace llamesh::ops::cuda
