#include <cstring>

#include "comm/nccl/device_reduce.hpp"
#include "fake_stream.hpp"

// Replaces comm/nccl/device_reduce.cu, whose kernels are not emulated.

namespace llamesh::comm::nccl {
namespace {

float get(const Tensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::bf16 ? static_cast<float>(tensor.as<bf16>()[i])
                                       : tensor.as<float>()[i];
}
void put(const Tensor& tensor, std::int64_t i, float value) {
  if (tensor.dtype() == DType::bf16)
    tensor.as<bf16>()[i] = bf16(value);
  else
    tensor.as<float>()[i] = value;
}

}  // namespace

void convert(cudaStream_t stream, const Tensor& to, const Tensor& from) {
  if (to.data() == from.data() || to.numel() == 0) return;
  fake_cuda::enqueue(stream, [=] {
    if (to.dtype() == from.dtype())
      std::memcpy(to.data(), from.data(), static_cast<std::size_t>(to.bytes()));
    else
      for (std::int64_t i = 0; i < to.numel(); ++i) put(to, i, get(from, i));
  });
}

void accumulate(cudaStream_t stream, const Tensor& sum, const Tensor& addend) {
  fake_cuda::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < sum.numel(); ++i) put(sum, i, get(sum, i) + get(addend, i));
  });
}

}  // namespace llamesh::comm::nccl
