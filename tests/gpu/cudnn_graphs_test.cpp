#include <gtest/gtest.h>

#ifdef LLAMESH_HAS_CUDNN
#include <cuda_runtime_api.h>

#include <array>
#include <string>

#include "ops/cuda/attention/cudnn_graph.hpp"
#endif

// cuDNN's attention graphs for an H200 that need not be present: cuDNN plans for a described
// device. Without a driver, or on another GPU, it gets as far as choosing kernels. Failing to load
// them is then the only refusal that passes.

#ifndef LLAMESH_HAS_CUDNN
TEST(CudnnGraphs, AreNotBuiltIn) {
  GTEST_SKIP() << "this build has no cuDNN";
}
#else

namespace {
/// Device properties that cudnn_frontend reads before it asks cuDNN (linked with --wrap).
constexpr int compute_capability = 9;
}  // namespace

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier)
cudaError_t __wrap_cudaGetDevice(int* device);
cudaError_t __wrap_cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t __wrap_cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int device);

cudaError_t __wrap_cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  properties->major = compute_capability;
  return cudaSuccess;
}
// Name in CUDA 12.
cudaError_t __wrap_cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int device) {
  return __wrap_cudaGetDeviceProperties(properties, device);
}
// NOLINTEND(bugprone-reserved-identifier)
}

namespace llamesh::test {
namespace {

using ops::AttentionShape;
using ops::cuda::AttentionPass;
using ops::cuda::CudnnGraph;
using ops::cuda::CudnnProblem;

/// An H200 in terms of cuDNN's device property descriptor (cuDNN 9.8 to 9.28).
const std::string h200 = R"({
  "deviceName": "NVIDIA H200", "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000, "pciDeviceId": 0,
  "multiProcessorCount": 132, "totalGlobalMem": 150120000000, "l2CacheSize": 52428800, "warpSize": 32,
  "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
  "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
  "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "isTccDriver": 0, "supportCoopLaunch": 1,
  "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "memoryBusWidth": 6144, "smCountOrigin": 0,
  "oversizedSharedMemoryPerBlock": 0})";

/// Returns a call on columns of one q, k, v matrix with `gap` extra elements between rows. There is
/// no data behind it.
ops::AttentionCall call_of(const AttentionShape& s, std::int64_t gap) {
  alignas(16) static std::array<std::byte, 16> nothing;
  const auto q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim, v = s.kv_heads * s.value_dim,
             values = s.heads * s.value_dim, tokens = s.batch * s.sequence;
  const Tensor qkv(nothing.data(), DType::bf16, {tokens, q + k + v + gap});
  const Tensor out(nothing.data(), DType::bf16, {tokens, values + gap});
  return {.shape = s,
          .q = qkv.slice_cols(0, q),
          .k = qkv.slice_cols(q, k),
          .v = qkv.slice_cols(q + k, v),
          .out = out.slice_cols(0, values),
          .log_sum_exp = {}};
}

/// Returns the shape with the values of latent attention in DeepSeek-V3.
AttentionShape latent(AttentionShape shape) {
  shape.value_dim = 128;
  return shape;
}

std::string refusal_of(const AttentionShape& shape, AttentionPass pass, std::int64_t gap = 0) {
  return CudnnGraph(CudnnProblem(call_of(shape, gap)), pass, h200).refusal();
}

constexpr auto both_passes = {AttentionPass::forward, AttentionPass::backward};

class CudnnGraphsOfH200 : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto& library = ops::cuda::cudnn_library();
    if (library.handle == nullptr) GTEST_SKIP() << library.text;
    cudaFree(nullptr);  // starts the driver, if there is one
    const auto words = refusal_of({1, 64, 2, 1, 64}, AttentionPass::forward);
    if (words.find("SUBLIBRARY_LOADING_FAILED") != std::string::npos)
      GTEST_SKIP() << library.text << " plans only beside a driver: " << words;
  }
};

/// Returns true if cuDNN has kernels and merely failed to load them.
bool could_only_not_load(const std::string& words) {
  return words.find("libcuda == nullptr") != std::string::npos ||
         words.find("No valid execution plans built") != std::string::npos;
}

TEST_F(CudnnGraphsOfH200, AreAcceptedInBothDirections) {
  struct Case {
    AttentionShape shape;
    std::int64_t gap;
  };
  for (const auto& [shape, gap] :
       {Case{{4, 4096, 32, 8, 128}, 0}, Case{{1, 8192, 32, 8, 64}, 0}, Case{{2, 131, 8, 2, 128}, 8},
        Case{{2, 37, 8, 2, 64}, 8}, Case{{1, 257, 1, 1, 64}, 8}, Case{{2, 300, 8, 2, 80}, 0},
        // With a window, which would otherwise be left to the built-in kernels unnoticed.
        Case{{4, 4096, 32, 8, 128, 1024}, 0}, Case{{1, 2048, 8, 2, 64, 256}, 8},
        Case{{2, 131, 8, 2, 128, 1}, 8}, Case{{2, 300, 8, 2, 80, 70}, 0},
        Case{latent({1, 4096, 128, 128, 192}), 0}, Case{latent({2, 131, 4, 4, 192}), 8}}) {
    for (const auto pass : both_passes) {
      const auto words = refusal_of(shape, pass, gap);
      EXPECT_TRUE(words.empty() || could_only_not_load(words))
          << shape.sequence << " tokens, heads of " << shape.head_dim << ", window " << shape.window
          << ": " << words.substr(0, 1000);
      EXPECT_TRUE(words.empty() || words.starts_with("the graph of attention")) << words;
    }
  }
}

TEST_F(CudnnGraphsOfH200, AreRefusedInCudnnsWords) {
  for (const auto pass : both_passes) {
    EXPECT_NE(refusal_of({1, 64, 2, 1, 12}, pass).find("multiple of 8"), std::string::npos);
    EXPECT_NE(refusal_of({1, 64, 3, 2, 64}, pass).find("group-query"), std::string::npos);
  }
  EXPECT_NE(refusal_of({1, 1, 2, 1, 64}, AttentionPass::backward).find("s_q = s_kv = 1"),
            std::string::npos);
}

TEST_F(CudnnGraphsOfH200, NeedADeviceThatIsTold) {
  const CudnnGraph graph(CudnnProblem(call_of({1, 64, 2, 1, 64}, 0)), AttentionPass::forward, "{}");
  EXPECT_NE(graph.refusal().find("reading the properties failed"), std::string::npos)
      << graph.refusal();
}

}  // namespace
}  // namespace llamesh::test
#endif
