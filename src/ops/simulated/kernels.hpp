#pragma once

#include <algorithm>
#include <concepts>

#include "core/tensor.hpp"
#include "device/simulated/simulation.hpp"
#include "ops/ops.hpp"

/// Kernels from ops.hpp on a simulated device. Each costs max(FLOPs / reachable peak, bytes /
/// memory bandwidth) on the current device::Simulation's hardware, plus the launch time, or the
/// measured time.
namespace llamesh::ops::simulated {

#define LLAMESH_KERNEL(name) decltype(ops::name)::Function name;
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL

inline const device::Hardware& hardware() {
  return device::Simulation::current().hardware();
}

/// Returns the bytes in tensors that a kernel reads or writes once.
double bytes_of(const std::same_as<Tensor> auto&... tensors) {
  return (0.0 + ... + (tensors ? static_cast<double>(tensors.bytes()) : 0.0));
}

/// Advances `stream` by the time for `flops` at `rate` FLOP/s and `bytes` of memory traffic, or by
/// the measured time for a product of this size (MeasuredRates::kernels).
inline void work(device::Stream& stream, double flops, double rate, double bytes, double size) {
  auto& simulation = device::Simulation::current();
  const double seconds = std::max(flops / rate, bytes / simulation.memory_bandwidth(stream));
  simulation.run_kernel(stream, size, flops, hardware().launch_seconds + seconds);
}

/// Counts scratch that a CPU kernel keeps.
inline void keep_cpu_scratch(const char* of, std::int64_t bytes) {
  if (hardware().kind == device::Kind::cpu) device::Simulation::current().keep_scratch(of, bytes);
}

/// Advances `stream` by the time to move `bytes`.
inline void move(device::Stream& stream, double bytes) {
  auto& simulation = device::Simulation::current();
  const double seconds = bytes / simulation.memory_bandwidth(stream);
  simulation.run_kernel(stream, bytes, bytes, hardware().launch_seconds + seconds);
}

}  // namespace llamesh::ops::simulated
