#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/error.hpp"
#include "device/cuda/runtime.hpp"

/// Host-side helpers around kernels: launches, scratch memory, reading back a value.
namespace llamesh::ops::cuda {

using device::cuda::check;

struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};

/// Queues a kernel on the stream, with `shared_bytes` of dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid grid, std::int64_t threads,
            std::int64_t shared_bytes, device::Stream& stream, Arguments... arguments) {
  const auto bytes = static_cast<std::size_t>(shared_bytes);
  if (bytes > 48 * 1024)  // larger sizes need an opt-in
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

/// Returns the memory pool behind Scratch. It keeps freed memory, so a step after the first
/// allocates nothing.
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

/// Memory for data passed between kernels on one stream; freed in stream order.
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

/// Returns a value that the stream leaves on the device; waits for the stream.
template <class T>
T read_back(device::Stream& stream, const T* from) {
  T value{};
  const auto native = device::cuda::native(stream);
  check(cudaMemcpyAsync(&value, from, sizeof value, cudaMemcpyDeviceToHost, native), "read back");
  check(cudaStreamSynchronize(native), "wait for the stream");
  return value;
}

/// Returns an attribute of the current device.
inline int attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "attribute of the device");
  return value;
}

inline std::int64_t multiprocessors() {
  static const int count = attribute(cudaDevAttrMultiProcessorCount);
  return count;
}

/// Returns the maximum shared memory per block: 99 KiB on small Ampere and Ada GPUs, 163 KiB on an
/// A100, 227 KiB on Hopper.
inline std::int64_t shared_bytes_a_block() {
  static const int bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return bytes;
}

/// Returns true if the current device is a Hopper GPU and this build has sm_90a code. PTX for later
/// GPUs does not include wgmma (wgmma.cuh).
inline bool has_wgmma() {
#ifdef LLAMESH_HAS_WGMMA
  static const bool hopper = attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
                             attribute(cudaDevAttrComputeCapabilityMinor) == 0;
  return hopper;
#else
  return false;
#endif
}

}  // namespace llamesh::ops::cuda
