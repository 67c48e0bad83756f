#include "ops/cpu/gemm.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/matvec.hpp"

namespace llamesh::ops::cpu {

void linear(Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  stream.run([=] {
    if (x.rows() == 1)
      matvec(y, x, w, accumulate);
    else
      gemm(Matrix(y), Matrix(x), Matrix(w).transposed(), accumulate);
  });
}

void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate) {
  stream.run([=] { gemm(Matrix(dx), Matrix(dy), Matrix(w), accumulate); });
}

void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate) {
  stream.run([=] { gemm(Matrix(dw), Matrix(dy).transposed(), Matrix(x), accumulate); });
}

}  // namespace llamesh::ops::cpu
