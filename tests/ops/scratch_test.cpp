#include "ops/cpu/scratch.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "device/simulated/simulation.hpp"

namespace llamesh::ops::cpu {
namespace {

/// A step that is offloaded from a GPU runs CPU kernels in a process whose device is that GPU. The
/// simulated device's memory faults when touched, like a GPU's.
TEST(Scratch, IsHostMemoryWhateverTheDevice) {
  device::Hardware gpu;
  gpu.kind = device::Kind::cuda;
  const device::Simulation simulation(gpu);
  Scratch scratch;
  constexpr std::int64_t count = 1 << 16;
  std::memset(scratch.array<float>(count), 1, count * sizeof(float));
  EXPECT_EQ(device::MemoryMeter::instance().in_use(), 0);
}

}  // namespace
}  // namespace llamesh::ops::cpu
