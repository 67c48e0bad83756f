#include <cublasLt.h>

#include "device/buffer.hpp"
#include "device/cuda/runtime.hpp"
#include "ops/cuda/gemm/gemm.hpp"
#include "ops/cuda/kernels.hpp"

namespace llamesh::ops::cuda {
namespace {

bool only_emulates = false;

/// Returns true if cuBLASLt multiplies FP8 with a scale per row: from Hopper on.
bool has_fp8() {
#if CUBLAS_VERSION >= 120900
  static const int major = [] {
    int device = 0;
    cudaDeviceProp properties{};
    device::cuda::check(cudaGetDevice(&device), "current device");
    device::cuda::check(cudaGetDeviceProperties(&properties, device), "properties of the device");
    return properties.major;
  }();
  return major >= 9;
#else
  return false;
#endif
}

/// cuBLASLt wants columns and addresses at multiples of 16 bytes.
bool fits(const Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w) {
  const auto at_16 = [](const Tensor& t) {
    return reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0;
  };
  return y.dtype() == DType::bf16 && x.values.cols() % 16 == 0 && w.values.rows() % 16 == 0 &&
         y.row_stride() % 8 == 0 && at_16(y) && at_16(x.values) && at_16(w.values);
}

/// An operand in another dtype. Its memory serves all products, in the compute stream's order, and
/// is never freed: CUDA may be gone before main() ends.
class Widened {
 public:
  Tensor operator()(Stream& stream, const Fp8Matrix& q, DType dtype) {
    const auto bytes = q.values.numel() * size_of(dtype);
    if (buffer_.bytes() < bytes) {
      stream.record().wait();  // the old buffer is no longer read
      buffer_ = {};
      const device::ScopedMemoryTag use(device::MemoryUse::scratch);
      buffer_ = device::Buffer(bytes);
    }
    const Tensor wide = shaped_like(q.values, dtype, buffer_.data());
    dequantize_rows(stream, wide, q);
    return wide;
  }

 private:
  device::Buffer buffer_;
};
struct Operands {
  Widened x, w;
};
Operands& widened() {
  static auto& operands = *new Operands;
  return operands;
}

}  // namespace

bool multiplies_fp8() {
  return has_fp8() && !only_emulates;
}

void emulate_fp8(bool emulate) {
  only_emulates = emulate;
}

}  // namespace llamesh::ops::cuda

namespace LLAMESH_OPS_CUDA {

void linear_fp8(Stream& stream, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w,
                Accumulate accumulate) {
  if (multiplies_fp8() && fits(y, x, w))
    return gemm(stream, Matrix(y), Matrix(x.values, x.scales.as<float>()),
                Matrix(w.values, w.scales.as<float>()).transposed(), accumulate);
  auto& wide = widened();
  linear(stream, y, wide.x(stream, x, y.dtype()), wide.w(stream, w, y.dtype()), accumulate);
}

// There is no FP8 kernel for experts yet: their numbers are multiplied in the type of y.
void grouped_linear_fp8(Stream& stream, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w,
                        Tensor starts, Accumulate accumulate) {
  auto& wide = widened();
  grouped_linear(stream, y, wide.x(stream, x, y.dtype()), wide.w(stream, w, y.dtype()), starts,
                 accumulate);
}

}  // namespace LLAMESH_OPS_CUDA
