#include <cuda_bf16.h>

#include <algorithm>

#include "comm/nccl/device_reduce.hpp"
#include "device/cuda/runtime.hpp"

// Memory-bound: 6 to 12 bytes per element. Tensors are dense and their ranges start at multiples of
// 64 bytes, so accesses with four elements are aligned.

namespace llamesh::comm::nccl {
namespace {

constexpr int threads = 256;
constexpr std::int64_t per_thread = 4;

struct alignas(16) Floats {
  float v[per_thread];
};
struct alignas(8) Halves {
  __nv_bfloat16 v[per_thread];
};

__device__ Floats load(const float* from) {
  return *reinterpret_cast<const Floats*>(from);
}
__device__ Floats load(const __nv_bfloat16* from) {
  const auto halves = *reinterpret_cast<const Halves*>(from);
  Floats result;
  for (int i = 0; i < per_thread; ++i) result.v[i] = __bfloat162float(halves.v[i]);
  return result;
}
__device__ void store(float* to, const Floats& values) {
  *reinterpret_cast<Floats*>(to) = values;
}
__device__ void store(__nv_bfloat16* to, const Floats& values) {
  Halves halves;
  for (int i = 0; i < per_thread; ++i) halves.v[i] = __float2bfloat16_rn(values.v[i]);
  *reinterpret_cast<Halves*>(to) = halves;
}

__device__ float widened(float x) {
  return x;
}
__device__ float widened(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class To, class From, bool add>
__global__ void __launch_bounds__(threads) combine(To* to, const From* from, std::int64_t count) {
  const std::int64_t at =
      per_thread * (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x);
  if (at + per_thread <= count) {
    Floats values = load(from + at);
    if constexpr (add) {
      const Floats sums = load(to + at);
      for (int i = 0; i < per_thread; ++i) values.v[i] += sums.v[i];
    }
    store(to + at, values);
    return;
  }
  for (std::int64_t i = at; i < count; ++i)
    to[i] = static_cast<To>((add ? widened(to[i]) : 0.0F) + widened(from[i]));
}

template <bool add, class To, class From>
void launch(cudaStream_t stream, void* to, const void* from, std::int64_t count) {
  constexpr std::int64_t per_block = threads * per_thread;
  const auto blocks = static_cast<unsigned>((count + per_block - 1) / per_block);
  combine<To, From, add>
      <<<blocks, threads, 0, stream>>>(static_cast<To*>(to), static_cast<const From*>(from), count);
  device::cuda::check(cudaGetLastError(), "a cast or sum of a collective");
}

}  // namespace

void convert(cudaStream_t stream, const Tensor& to, const Tensor& from) {
  if (to.data() == from.data() || to.numel() == 0) return;
  const auto n = to.numel();
  if (to.dtype() == from.dtype())
    device::cuda::check(
        cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(to.bytes()),
                        cudaMemcpyDeviceToDevice, stream),
        "a copy of a collective");
  else if (to.dtype() == DType::bf16)
    launch<false, __nv_bfloat16, float>(stream, to.data(), from.data(), n);
  else
    launch<false, float, __nv_bfloat16>(stream, to.data(), from.data(), n);
}

void accumulate(cudaStream_t stream, const Tensor& sum, const Tensor& addend) {
  if (sum.numel() == 0) return;
  if (addend.dtype() == DType::bf16)
    launch<true, float, __nv_bfloat16>(stream, sum.data(), addend.data(), sum.numel());
  else
    launch<true, float, float>(stream, sum.data(), addend.data(), sum.numel());
}

}  // namespace llamesh::comm::nccl
