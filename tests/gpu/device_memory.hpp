#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/stream.hpp"
#ifndef LLAMESH_CUDA_EMULATED
#include <fmt/format.h>

#include "device/buffer.hpp"
#include "device/device.hpp"
#endif

namespace llamesh::test {

/// Memory for the kernels under test: on a GPU, or on the host under the emulator.
class DeviceMemory {
 public:
#ifdef LLAMESH_CUDA_EMULATED
  explicit DeviceMemory(std::size_t bytes) : blocks_(bytes / sizeof(Block) + 1) {}
  void* data() {
    return blocks_.data();
  }
  void upload(device::Stream& /*stream*/, const std::vector<std::byte>& from) {
    std::copy(from.begin(), from.end(), static_cast<std::byte*>(data()));
  }
  void download(device::Stream& /*stream*/, std::vector<std::byte>& to) {
    std::copy_n(static_cast<std::byte*>(data()), to.size(), to.begin());
  }

 private:
  struct alignas(256) Block {
    std::byte bytes[256];
  };
  std::vector<Block> blocks_;
#else
  explicit DeviceMemory(std::size_t bytes) : buffer_(static_cast<std::int64_t>(bytes) + 4) {}
  void* data() {
    return buffer_.data();
  }
  void upload(device::Stream& stream, const std::vector<std::byte>& from) {
    device::upload(stream, words(from.size()), from.data());
  }
  void download(device::Stream& stream, std::vector<std::byte>& to) {
    device::download(stream, to.data(), words(to.size()));
  }

 private:
  Tensor words(std::size_t bytes) {
    return buffer_.tensor(DType::bf16, {static_cast<std::int64_t>(bytes / 2)});
  }
  device::Buffer buffer_;
#endif
};

/// Returns the stream for the kernels under test.
inline device::Stream& device_stream() {
#ifdef LLAMESH_CUDA_EMULATED
  static auto stream = device::Stream::calling_thread();
  return stream;
#else
  return device::compute_stream();
#endif
}

#ifndef LLAMESH_CUDA_EMULATED
/// Selects the first GPU, or skips all tests if there is none. GoogleTest would count them as
/// passed, so ctest and run.sh look for this line.
class FirstGpu : public ::testing::Environment {
  void SetUp() override {
    if (device::cuda_devices() == 0) {
      fmt::print("SKIPPED: {}\n", device::why_no_cuda());
      GTEST_SKIP();
    }
    device::use_cuda(0);
  }
};
inline auto* const first_gpu = ::testing::AddGlobalTestEnvironment(new FirstGpu);
#endif

/// Returns the stream for the CPU kernels, which give the expected results.
inline device::Stream& host_stream() {
  static auto stream = device::Stream::calling_thread();
  return stream;
}

}  // namespace llamesh::test
