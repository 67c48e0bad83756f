#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/error.hpp"
#include "device/cuda/runtime.hpp"

/// The few things of CUDA that the kernels use, each with its counterpart in
/// tests/emulator/emulated_target.hpp.

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

// --- Shared memory by address, asynchronous copies, matrix instructions ---

using SharedAddress = std::uint32_t;

__device__ __forceinline__ SharedAddress shared_address(const void* at) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(at));
}
__device__ __forceinline__ Words4 load_shared(SharedAddress from) {
  Words4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "r"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_shared(SharedAddress to, std::uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

/// from ^ bits, computed anew each time: kept in registers, the many addresses of an unrolled loop
/// would leave too few for the sums.
__device__ __forceinline__ SharedAddress flipped(SharedAddress from, SharedAddress bits) {
  SharedAddress to;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(to) : "r"(from), "r"(bits));
  return to;
}

/// Starts to copy 16 bytes to shared memory, or zeros where not `valid` (`from` is then not read).
__device__ __forceinline__ void copy_async(SharedAddress to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
/// Closes a group of this thread's copies.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `open` groups of this thread are on their way. Other threads see the bytes
/// after the next barrier.
template <int open>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}

/// Four 8 x 8 matrices of bf16; lane i gives the address of row i % 8 of matrix i / 8, and gets of
/// each matrix row i / 4, columns 2 (i % 4) and the next.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
/// The same of their transposes.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4],
                                                         SharedAddress from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// c (16, 8) += a (16, 16) b (16, 8), bf16 with fp32 sums. Lane i holds, with g = i / 4 and
/// t = 2 (i % 4): c at rows g (two), g + 8 (two), columns t, t + 1; a at (g, t), (g + 8, t),
/// (g, t + 8), (g + 8, t + 8), two columns each; b at rows t and t + 8, two rows each, column g.
__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- From the host ---

using device::cuda::check;

struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};

/// Puts a kernel into the stream, with `shared_bytes` of dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid grid, std::int64_t threads,
            std::int64_t shared_bytes, device::Stream& stream, Arguments... arguments) {
  const auto bytes = static_cast<std::size_t>(shared_bytes);
  if (bytes > 48 * 1024)  // only then does a kernel have to ask for it
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "shared memory of a kernel");
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = device::cuda::native(stream);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
        "launch of a kernel");
}

/// The pool from which Scratch takes its memory: it keeps what is given back, so that a step after
/// the first allocates nothing.
inline cudaMemPool_t scratch_pool() {
  static const cudaMemPool_t pool = [] {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    check(cudaGetDevice(&properties.location.id), "current device");
    cudaMemPool_t made = nullptr;
    check(cudaMemPoolCreate(&made, &properties), "pool of scratch memory");
    std::uint64_t kept = ~std::uint64_t{0};
    check(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &kept),
          "pool of scratch memory");
    return made;
  }();
  return pool;
}

/// Memory for what kernels of one stream pass on to each other; given back in the stream's order.
class Scratch {
 public:
  Scratch(device::Stream& stream, std::int64_t bytes) : stream_(device::cuda::native(stream)) {
    check(cudaMallocFromPoolAsync(&data_, static_cast<std::size_t>(bytes), scratch_pool(), stream_),
          "scratch memory");
  }
  ~Scratch() { cudaFreeAsync(data_, stream_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

/// A number that the stream's work leaves on the device; waits for it.
template <class T>
T read_back(device::Stream& stream, const T* from) {
  T value{};
  const auto native = device::cuda::native(stream);
  check(cudaMemcpyAsync(&value, from, sizeof value, cudaMemcpyDeviceToHost, native), "read back");
  check(cudaStreamSynchronize(native), "wait for the stream");
  return value;
}

/// Of the current device.
inline std::int64_t multiprocessors() {
  static const int count = [] {
    int device = 0, number = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, device),
          "number of multiprocessors");
    return number;
  }();
  return count;
}

}  // namespace llamesh::ops::cuda
