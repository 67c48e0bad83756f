#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/error.hpp"
#include "device/cuda/runtime.hpp"

/// What the host does around the kernels: launches, scratch memory, a number read back.
namespace llamesh::ops::cuda {

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

/// Whether the current device is a Hopper and this build has code for it alone, which PTX for
/// later ones is not (cuda_warpgroup.cuh).
inline bool has_warpgroups() {
#ifdef LLAMESH_HAS_WARPGROUPS
  static const bool hopper = [] {
    int device = 0, major = 0, minor = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
          "compute capability");
    return major == 9 && minor == 0;
  }();
  return hopper;
#else
  return false;
#endif
}

}  // namespace llamesh::ops::cuda
