#include "device/cuda/runtime.hpp"
#include "emulator.hpp"
#include "fake_stream.hpp"

// Queues emulated kernels on the fake streams.

namespace llamesh::emulator {
namespace {

const bool hooked = [] {
  looks_for_races = false;  // the kernels' own tests do that
  put_into_gpu_stream = [](device::Stream& stream, std::function<void()> work) {
    fake_cuda::enqueue(device::cuda::native(stream), std::move(work));
  };
  return true;
}();

}  // namespace
}  // namespace llamesh::emulator
