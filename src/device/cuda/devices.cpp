#include <array>

#include "core/error.hpp"
#include "device/cuda.hpp"
#include "device/cuda/runtime.hpp"

namespace llamesh::device::cuda {

void check(cudaError_t result, const char* what, std::source_location where) {
  if (result != cudaSuccess)
    fail(ExitCode::internal_error, "{} failed on the GPU: {} ({}), at {}:{}", what,
         cudaGetErrorString(result), cudaGetErrorName(result), where.file_name(), where.line());
}

namespace {

/// Kernels are compiled for compute capability 8.0 and later.
constexpr int least_major = 8;

cudaDeviceProp properties() {
  int device = 0;
  cudaDeviceProp result{};
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&result, device), "cudaGetDeviceProperties");
  return result;
}

}  // namespace

int devices() {
  int count = 0;  // left alone where there is no driver
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string why_no_devices() {
  int count = 0;
  const auto result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) return cudaGetErrorString(result);
  return count > 0 ? "" : "the driver shows no CUDA device";
}

void use(int index) {
  const int count = devices();
  validate(count > 0, "no GPU: {}; give --device cpu", why_no_devices());
  expects(index >= 0 && index < count, "CUDA device {} of {}", index, count);
  // Waiting threads sleep: other ranks and the data threads need their cores.
  check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "cudaSetDeviceFlags");
  check(cudaSetDevice(index), "cudaSetDevice");
  const auto p = properties();
  validate(p.major >= least_major,
           "{} has compute capability {}.{}; llamesh needs {}.0 or later; give --device cpu",
           p.name, p.major, p.minor, least_major);
}

std::string bus_id() {
  int device = 0;
  std::array<char, 32> id{};
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device),
        "cudaDeviceGetPCIBusId");
  return id.data();
}

std::string description() {
  const auto p = properties();
  return fmt::format("{} ({:.0f} GiB, compute capability {}.{}, {} multiprocessors)", p.name,
                     static_cast<double>(p.totalGlobalMem) / (1 << 30), p.major, p.minor,
                     p.multiProcessorCount);
}

}  // namespace llamesh::device::cuda
