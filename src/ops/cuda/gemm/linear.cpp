#include "ops/cuda/gemm/gemm.hpp"
#include "ops/cuda/kernels.hpp"

namespace LLAMESH_OPS_CUDA {

void linear(Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  gemm(stream, Matrix(y), Matrix(x), Matrix(w).transposed(), accumulate);
}

void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate) {
  gemm(stream, Matrix(dx), Matrix(dy), Matrix(w), accumulate);
}

void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate) {
  gemm(stream, Matrix(dw), Matrix(dy).transposed(), Matrix(x), accumulate);
}

}  // namespace LLAMESH_OPS_CUDA
