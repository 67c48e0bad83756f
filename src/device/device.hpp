#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "device/stream.hpp"

/// Where this process computes. A process has one device, chosen once, before the first Buffer and
/// the first stream: tensors that Buffer owns are on it.
namespace llamesh::device {

/// The CPU until use_cuda(); simulated while the calling thread has a Simulation.
Kind kind();

/// The same, but of a simulated device what it stands for: cpu or cuda.
Kind kind_of_kernels();

/// Number of CUDA devices that this process can see; 0 without a driver, and in a build without
/// CUDA.
int cuda_devices();

/// Why there are none, in one line for the user; empty when there are some.
std::string why_no_cuda();

/// Chooses CUDA device `index` of those visible. Throws a user error when it cannot be used.
void use_cuda(int index);

/// What distinguishes this process's GPU from every other of its node (PCI bus id); empty on the
/// CPU.
std::string identity();

/// Where MIG has divided the GPU, the profile of this process's part, e.g. "1g.10gb"; else empty.
std::string mig_profile();

/// The identities of all GPUs that this process can see, in the order of their indices. Needs no
/// use_cuda() before and initializes none of them.
std::string visible_identities();

/// "CPU", or name and memory of the GPU, or what is simulated.
std::string description();

/// Bytes of memory of the GPU, or host_memory_bytes().
std::int64_t memory_bytes();
/// Bytes of memory of this machine, less where its cgroup allows less.
std::int64_t host_memory_bytes();

/// Lets Nsight Systems, where it runs this process on a GPU, record from here to stop_profiler()
/// (cudaProfilerStart()), and shows it the ranges of Trace as NVTX's. Nothing elsewhere.
void start_profiler();
/// After all that the device was given.
void stop_profiler();

// Copies between host memory and dense tensors on the device of `stream`, after its work so far.

/// To the tensor; the bytes of `from` may change when this returns.
void upload(Stream& stream, const Tensor& to, const void* from);
/// From the tensor, and waits until it is done.
void download(Stream& stream, void* to, const Tensor& from);
/// Between dense tensors of one dtype and size, both on the device.
void copy_bytes(Stream& stream, const Tensor& to, const Tensor& from);
/// All bytes the same: 0 for zeros, `nan_bytes` for NaNs of every float type.
void set_bytes(Stream& stream, const Tensor& tensor, unsigned char value);
inline constexpr unsigned char nan_bytes = 0xFF;

}  // namespace llamesh::device
