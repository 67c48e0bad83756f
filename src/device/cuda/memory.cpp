#include "core/error.hpp"
#include "device/buffer.hpp"
#include "device/cuda.hpp"
#include "device/cuda/runtime.hpp"
#include "device/host_memory.hpp"
#include "device/memory_meter.hpp"

namespace llamesh::device::cuda {

void throw_out_of_memory(std::int64_t bytes) {
  std::size_t free = 0;
  std::size_t total = 0;
  cudaMemGetInfo(&free, &total);
  fail(ExitCode::bad_input, "cannot allocate {} bytes on the GPU ({} in use here, {} of {} free){}",
       bytes, MemoryMeter::instance().in_use(), free, total, memory_advice());
}

/// No memory pool: everything is planned and allocated before or during the first step.
std::shared_ptr<void> allocate(std::int64_t bytes) {
  attach_thread();
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(bytes);
  const auto result = cudaMalloc(&data, size);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // reported here, so clear it for the next call
    throw_out_of_memory(bytes);
  }
  check(result, "cudaMalloc");
  check(cudaMemset(data, 0, size), "cudaMemset");
  // It runs in the default stream, which our streams do not wait for.
  check(cudaDeviceSynchronize(), "cudaMemset");
  return {data, [](void* p) { cudaFree(p); }};
}

/// Takes the GPU's NUMA node: over the link between sockets a copy reaches a fraction of PCIe's
/// rate.
std::shared_ptr<void> allocate_pinned(std::int64_t bytes) {
  attach_thread();  // an asynchronous save's thread, for one
  static const int node = numa_node_of(bus_id());
  const PreferNumaNode scope(node);
  void* data = nullptr;
  const auto result = cudaMallocHost(&data, static_cast<std::size_t>(bytes));
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(ExitCode::bad_input,
         "cannot allocate {} bytes of host memory for copies from the GPU; use more ranks", bytes);
  }
  check(result, "cudaMallocHost");
  return {data, [](void* p) { cudaFreeHost(p); }};
}

void upload_async(Stream& stream, void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, native(stream)), "a copy to it");
}

void download_async(Stream& stream, void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, native(stream)), "a copy from it");
}

void upload(Stream& stream, void* to, const void* from, std::size_t bytes) {
  upload_async(stream, to, from, bytes);
  check(cudaStreamSynchronize(native(stream)), "a copy to it");
}

void download(Stream& stream, void* to, const void* from, std::size_t bytes) {
  download_async(stream, to, from, bytes);
  check(cudaStreamSynchronize(native(stream)), "a copy from it");
}

void copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)),
        "a copy within it");
}

void set_bytes(Stream& stream, void* data, unsigned char value, std::size_t bytes) {
  check(cudaMemsetAsync(data, value, bytes, native(stream)), "cudaMemsetAsync");
}

}  // namespace llamesh::device::cuda
