#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "core/trace.hpp"
#include "device/buffer.hpp"
#include "device/cuda.hpp"
#include "device/cuda/runtime.hpp"

namespace llamesh::device::cuda {
namespace {

std::atomic<int> used_index{0};  // of this process's device

/// Returns true if the GPU, NVLink or node services failed rather than this program.
bool of_the_machine(cudaError_t error) {
  return error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable ||
         error == cudaErrorDevicesUnavailable || error == cudaErrorSystemNotReady;
}

// In the default domain, like torch.cuda.nvtx.
constexpr Trace::Ranges nvtx{[](const char* title) { nvtxRangePushA(title); },
                             [] { nvtxRangePop(); }};

}  // namespace

void check(cudaError_t result, const char* what, std::source_location where) {
  if (result == cudaErrorMemoryAllocation)
    fail(ExitCode::bad_input, "{} found no memory left on the GPU{}", what, memory_advice());
  if (of_the_machine(result))
    fail(ExitCode::stopped_early, "{} failed on the GPU by a fault of it or of its node: {} ({})",
         what, cudaGetErrorString(result), cudaGetErrorName(result));
  if (result != cudaSuccess)
    fail(ExitCode::internal_error, "{} failed on the GPU: {} ({}), at {}:{}", what,
         cudaGetErrorString(result), cudaGetErrorName(result), where.file_name(), where.line());
}

namespace {

/// Kernels are compiled for compute capability 8.0 and later.
constexpr int least_major = 8;

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

cudaDeviceProp properties() {
  cudaDeviceProp result{};
  check(cudaGetDeviceProperties(&result, current_device()), "cudaGetDeviceProperties");
  return result;
}

/// The first CUDA call. CUDA then reads the number of its hardware queues: with the default of 8,
/// streams of different mesh axes may share one and wait for each other.
cudaError_t count_devices(int& count) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  return cudaGetDeviceCount(&count);
}

std::string bus_id_of(int device) {
  std::array<char, 32> id{};
  check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device),
        "cudaDeviceGetPCIBusId");
  return id.data();
}

}  // namespace

int devices() {
  int count = 0;  // unchanged if there is no driver
  return count_devices(count) == cudaSuccess ? count : 0;
}

std::string failure() {
  int count = 0;
  int driver = 0;  // stays 0 if none is installed
  const auto result = count_devices(count);
  if (result == cudaSuccess || result == cudaErrorNoDevice) return "";
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "";
  return fmt::format("{} ({})", cudaGetErrorString(result), cudaGetErrorName(result));
}

std::string why_no_devices() {
  int count = 0;
  const auto result = count_devices(count);
  if (result != cudaSuccess) return cudaGetErrorString(result);
  return count > 0 ? "" : "the driver shows no CUDA device";
}

void attach_thread() {
  thread_local const bool attached = [] {
    check(cudaSetDevice(used_index), "cudaSetDevice");
    return true;
  }();
  static_cast<void>(attached);
}

void use(int index) {
  const int count = devices();
  validate(count > 0, "no GPU: {}; give --device cpu", why_no_devices());
  expects(index >= 0 && index < count, "CUDA device {} of {}", index, count);
  check(cudaSetDevice(index), "cudaSetDevice");
  used_index = index;
  // Waiting threads sleep, because other ranks and the data threads need their cores. Flags apply
  // to the current device: set earlier, they would give each rank a context on the first GPU.
  check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "cudaSetDeviceFlags");
  const auto p = properties();
  validate(p.major >= least_major,
           "{} has compute capability {}.{}; llamesh needs {}.0 or later; give --device cpu",
           p.name, p.major, p.minor, least_major);
}

std::string bus_id() {
  return bus_id_of(current_device());
}

std::string mig_profile() {
  constexpr std::string_view mark = " MIG ";  // "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
  const std::string name = properties().name;
  const auto at = name.find(mark);
  return at == std::string::npos ? "" : name.substr(at + mark.size());
}

std::string visible_bus_ids() {
  std::string ids;
  for (int device = 0; device < devices(); ++device) ids += bus_id_of(device) + " ";
  return ids;
}

std::int64_t memory_bytes() {
  return static_cast<std::int64_t>(properties().totalGlobalMem);
}

std::int64_t free_memory_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

std::string description() {
  const auto p = properties();
  return fmt::format("{} ({:.0f} GiB, compute capability {}.{}, {} multiprocessors)", p.name,
                     static_cast<double>(p.totalGlobalMem) / (1 << 30), p.major, p.minor,
                     p.multiProcessorCount);
}

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
