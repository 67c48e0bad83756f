#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include "core/trace.hpp"
#include "device/cuda.hpp"
#include "device/cuda/runtime.hpp"

namespace llamesh::device::cuda {
namespace {

// In the default domain, like torch.cuda.nvtx.
constexpr Trace::Ranges nvtx{[](const char* title) { nvtxRangePushA(title); },
                             [] { nvtxRangePop(); }};

}  // namespace

void start_profiler() {
  Trace::show_ranges_in(nvtx);
  check(cudaProfilerStart(), "cudaProfilerStart");
}

/// Synchronizes first, so that running kernels are included.
void stop_profiler() {
  check(cudaDeviceSynchronize(), "work that is profiled");
  check(cudaProfilerStop(), "cudaProfilerStop");
}

}  // namespace llamesh::device::cuda
