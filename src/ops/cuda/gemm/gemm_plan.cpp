#include "ops/cuda/gemm/gemm_plan.hpp"

#include <array>
#include <bit>

#include "core/error.hpp"

namespace llamesh::ops::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
}

/// Returns the largest power of two up to 256 that divides the address and the row stride.
unsigned alignment_of(const Matrix& matrix) {
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.data);
  const auto stride = static_cast<std::uintptr_t>(matrix.row_stride * size_of(matrix.dtype));
  const auto both = address | stride | 256U;
  return 1U << static_cast<unsigned>(std::countr_zero(both));
}

}  // namespace

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ExitCode::internal_error, "{} failed in cuBLASLt: {}", what,
         cublasLtGetStatusName(status));
}

GemmProblem::GemmProblem(const Matrix& c, const Matrix& a, const Matrix& b)
    : m(c.rows),
      n(c.cols),
      k(a.cols),
      inputs(a.dtype),
      output(c.dtype),
      a_transposed(a.is_transposed),
      b_transposed(b.is_transposed),
      a_stride(a.row_stride),
      b_stride(b.row_stride),
      c_stride(c.row_stride),
      a_alignment(alignment_of(a)),
      b_alignment(alignment_of(b)),
      c_alignment(alignment_of(c)) {}

// cuBLASLt is column-major: it sees each row-major matrix transposed, so ask it for c^T = b^T a^T.

GemmPlan::Layout GemmPlan::layout(DType dtype, std::int64_t rows, std::int64_t cols,
                                  std::int64_t stride, bool transposed) {
  const auto lines = static_cast<std::uint64_t>(transposed ? cols : rows);
  const auto length = static_cast<std::uint64_t>(transposed ? rows : cols);
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(dtype), length, lines, stride),
        "cublasLtMatrixLayoutCreate");
  return {made, cublasLtMatrixLayoutDestroy};
}

GemmPlan::Operation GemmPlan::operation(const GemmProblem& problem, int sm_count_target) {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  Operation result{made, cublasLtMatmulDescDestroy};
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    check(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, problem.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, problem.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (sm_count_target > 0) set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{sm_count_target});
  return result;
}

/// Sets the scales of e4m3 matrices.
void GemmPlan::use_scales(const Matrix& a, const Matrix& b) const {
#if CUBLAS_VERSION >= 120900
  if (a.dtype != DType::e4m3) return;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    check(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  };
  const std::int32_t by_rows = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, by_rows);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, by_rows);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(b.scales));
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(a.scales));
#else
  expects(a.dtype != DType::e4m3, "FP8 products need cuBLASLt 12.9");
#endif
}

GemmPlan::GemmPlan(cublasLtHandle_t handle, const GemmProblem& p, int sm_count_target,
                   const Matrix& a, const Matrix& b)
    : operation_(operation(p, sm_count_target)),
      a_(layout(p.inputs, p.m, p.k, p.a_stride, p.a_transposed)),
      b_(layout(p.inputs, p.k, p.n, p.b_stride, p.b_transposed)),
      c_(layout(p.output, p.m, p.n, p.c_stride, /*transposed=*/false)) {
  use_scales(a, b);
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        cublasStatus_t (*)(cublasLtMatmulPreference_t)>
      preference(made, cublasLtMatmulPreferenceDestroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(gemm_workspace_bytes));
  // A split-k product is reduced in fp32 too, never in c's dtype.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{p.b_alignment});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{p.a_alignment});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{p.c_alignment});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{p.c_alignment});
  std::array<cublasLtMatmulHeuristicResult_t, gemm_candidates> found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), c_.get(),
                                       c_.get(), made, gemm_candidates, found.data(), &count),
        "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < count; ++i) {
    const auto& result = found.at(static_cast<std::size_t>(i));
    // A result without success has no algorithm.
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms_.push_back(result.algo);
  }
  expects(!algorithms_.empty(), "cuBLASLt has no algorithm for a product of {} x {} x {}", p.m, p.n,
          p.k);
}

void GemmPlan::run(cublasLtHandle_t handle, int candidate, const Matrix& c, const Matrix& a,
                   const Matrix& b, Accumulate accumulate, void* workspace,
                   cudaStream_t stream) const {
  use_scales(a, b);
  const float alpha = 1.0F;
  const float beta = accumulate == Accumulate::yes ? 1.0F : 0.0F;
  check(cublasLtMatmul(handle, operation_.get(), &alpha, b.data, b_.get(), a.data, a_.get(), &beta,
                       c.data, c_.get(), c.data, c_.get(),
                       &algorithms_.at(static_cast<std::size_t>(candidate)), workspace,
                       static_cast<std::size_t>(gemm_workspace_bytes), stream),
        "cublasLtMatmul");
}

}  // namespace llamesh::ops::cuda
