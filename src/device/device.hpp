#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "device/stream.hpp"

/// This process's device. A process has one, chosen once before the first Buffer and the first
/// stream. Tensors owned by a Buffer are on it.
namespace llamesh::device {

/// Returns cpu until use_cuda(), and simulated while the calling thread has a Simulation.
Kind kind();

/// Like kind(), but for a simulated device returns the kind that it simulates: cpu or cuda.
Kind kind_of_kernels();

/// Returns the number of CUDA devices visible to this process; 0 without a driver or in a build
/// without CUDA.
int cuda_devices();

/// Returns one line that explains to the user why there are none; empty if there are some.
std::string why_no_cuda();

/// Returns CUDA's error message if this machine has a driver that fails to list its GPUs; empty if
/// it lists them, or if there is no driver or no GPU.
std::string cuda_failure();

/// Returns the number of NVIDIA GPUs that this machine's kernel driver serves, visible to CUDA or
/// not. `folder` has an entry per GPU.
std::int64_t installed_gpus(const char* folder = "/proc/driver/nvidia/gpus");

/// Selects visible CUDA device `index`. Throws a user error if it cannot be used.
void use_cuda(int index);

/// Returns a name that is unique among the node's GPUs (PCI bus id); empty on the CPU.
std::string identity();

/// Returns the MIG profile for this process's GPU slice, e.g. "1g.10gb"; empty without MIG.
std::string mig_profile();

/// Returns the identities of all visible GPUs in index order. Needs no use_cuda() and initializes
/// no GPU.
std::string visible_identities();

/// Returns "CPU", the GPU's name and memory, or what is simulated.
std::string description();

/// Returns the GPU's memory in bytes, or host_memory_bytes().
std::int64_t memory_bytes();
/// Returns the GPU's memory that is free now, with this process's context on it.
std::int64_t free_gpu_memory_bytes();
/// Returns this machine's memory in bytes, capped by the cgroup limit.
std::int64_t host_memory_bytes();

/// Returns the number of cores that this process's cgroup (v2) and those above it let it use;
/// infinity without a quota. `root` is where cgroups are mounted, `group` is the process's path
/// there.
double cpu_quota(const std::string& root, std::string group);
double cpu_quota();

/// Starts recording in Nsight Systems, if it runs this process on a GPU (cudaProfilerStart()), and
/// shows it Trace ranges as NVTX ranges. Does nothing elsewhere.
void start_profiler();
/// Stops recording once all queued device work is done.
void stop_profiler();

// Copies between host memory and dense device tensors, in `stream` order.

/// Returns the bytes in a tensor, which must be dense: it is copied as one range.
std::size_t dense_bytes(const Tensor& tensor);

/// Copies to the tensor. `from` may be reused on return.
void upload(Stream& stream, const Tensor& to, const void* from);
/// Copies from the tensor and waits for completion.
void download(Stream& stream, void* to, const Tensor& from);
/// Copies between dense device tensors with equal dtype and size.
void copy_bytes(Stream& stream, const Tensor& to, const Tensor& from);
/// Sets every byte to `value`: 0 for zeros, `nan_bytes` for NaN in any float type.
void set_bytes(Stream& stream, const Tensor& tensor, unsigned char value);
inline constexpr unsigned char nan_bytes = 0xFF;

}  // namespace llamesh::device
