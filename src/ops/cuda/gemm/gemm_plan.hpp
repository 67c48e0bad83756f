#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor.hpp"
#include "ops/cuda/gemm/gemm.hpp"
#include "ops/cuda/gemm/gemm_table.hpp"

namespace llamesh::ops::cuda {

/// Throws an internal error that names the failed cuBLASLt call.
void check(cublasStatus_t status, const char* what);

/// A problem in cuBLASLt's terms, and its algorithms, the library's first choice first.
class GemmPlan {
 public:
  /// `sm_count_target`: see ops::use_gemm_sm_count_target(). `a` and `b`: of the first product.
  GemmPlan(cublasLtHandle_t handle, const GemmProblem& problem, int sm_count_target,
           const Matrix& a, const Matrix& b);

  /// At least 1, at most gemm_candidates.
  int candidates() const { return static_cast<int>(algorithms_.size()); }
  void run(cublasLtHandle_t handle, int candidate, const Matrix& c, const Matrix& a,
           const Matrix& b, Accumulate accumulate, void* workspace, cudaStream_t stream) const;

 private:
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, cublasStatus_t (*)(cublasLtMatrixLayout_t)>;
  using Operation =
      std::unique_ptr<cublasLtMatmulDescOpaque_t, cublasStatus_t (*)(cublasLtMatmulDesc_t)>;

  static Layout layout(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                       bool transposed);
  static Operation operation(const GemmProblem& problem, int sm_count_target);
  void use_scales(const Matrix& a, const Matrix& b) const;

  Operation operation_;
  Layout a_, b_, c_;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace llamesh::ops::cuda
