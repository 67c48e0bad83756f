#include "ops/cuda/gemm.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <tuple>

#include "core/error.hpp"
#include "device/buffer.hpp"
#include "device/cuda/runtime.hpp"
#include "ops/cuda/kernels.hpp"

namespace llamesh::ops::cuda {
namespace {

constexpr std::int64_t workspace_bytes = std::int64_t{32} << 20U;  // what Hopper's kernels ask for

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ExitCode::internal_error, "{} failed in cuBLASLt: {}", what,
         cublasLtGetStatusName(status));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// What decides about the algorithm; alignments in bytes, as powers of two.
struct Problem {
  std::int64_t m, n, k;
  DType inputs, output;
  bool a_transposed, b_transposed;
  std::int64_t a_stride, b_stride, c_stride;
  unsigned a_alignment, b_alignment, c_alignment;

  auto operator<=>(const Problem&) const = default;
};

/// The largest power of two up to 256 that divides the address and, with more than one row, the
/// distance of the rows.
unsigned alignment_of(const Matrix& matrix) {
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.data);
  const auto stride = static_cast<std::uintptr_t>(matrix.row_stride * size_of(matrix.dtype));
  const auto both = address | stride | 256U;
  return 1U << static_cast<unsigned>(std::countr_zero(both));
}

using Layout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, cublasStatus_t (*)(cublasLtMatrixLayout_t)>;

/// cuBLASLt counts by columns: a row-major matrix is the transpose of what it sees.
Layout layout_of(const Matrix& matrix) {
  const auto rows = static_cast<std::uint64_t>(matrix.is_transposed ? matrix.cols : matrix.rows);
  const auto cols = static_cast<std::uint64_t>(matrix.is_transposed ? matrix.rows : matrix.cols);
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type_of(matrix.dtype), cols, rows, matrix.row_stride),
        "cublasLtMatrixLayoutCreate");
  return {made, cublasLtMatrixLayoutDestroy};
}

/// One shape's descriptors and the algorithm for it: c^T = b^T a^T.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Matrix& c, const Matrix& a, const Matrix& b, int candidate)
      : a_(layout_of(a)), b_(layout_of(b)), c_(layout_of(c)) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    operation_.reset(made);
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, b.is_transposed);
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, a.is_transposed);
    choose(handle, c, a, b, candidate);
  }

  void run(cublasLtHandle_t handle, const Matrix& c, const Matrix& a, const Matrix& b,
           Accumulate accumulate, void* workspace, cudaStream_t stream) const {
    const float alpha = 1.0F;
    const float beta = accumulate == Accumulate::yes ? 1.0F : 0.0F;
    check(cublasLtMatmul(handle, operation_.get(), &alpha, b.data, b_.get(), a.data, a_.get(),
                         &beta, c.data, c_.get(), c.data, c_.get(), &algorithm_, workspace,
                         static_cast<std::size_t>(workspace_bytes), stream),
          "cublasLtMatmul");
  }

 private:
  void set_transpose(cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(
        cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &operation, sizeof(operation)),
        "cublasLtMatmulDescSetAttribute");
  }

  void choose(cublasLtHandle_t handle, const Matrix& c, const Matrix& a, const Matrix& b,
              int candidate) {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                          cublasStatus_t (*)(cublasLtMatmulPreference_t)>
        preference(made, cublasLtMatmulPreferenceDestroy);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    // A product in several parts along k is summed in fp32 too, never in the type of c.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{alignment_of(b)});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{alignment_of(a)});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{alignment_of(c)});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{alignment_of(c)});
    std::array<cublasLtMatmulHeuristicResult_t, gemm_candidates> found{};  // the best one first
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), c_.get(),
                                         c_.get(), made, candidate + 1, found.data(), &count),
          "cublasLtMatmulAlgoGetHeuristic");
    // A result without success has no algorithm.
    const auto good = std::stable_partition(
        found.begin(), found.begin() + count,
        [](const auto& result) { return result.state == CUBLAS_STATUS_SUCCESS; });
    const auto usable = static_cast<int>(good - found.begin());
    expects(usable > 0, "cuBLASLt has no algorithm for a product of {} x {} x {}", c.rows, c.cols,
            a.cols);
    algorithm_ = found[static_cast<std::size_t>(std::min(candidate, usable - 1))].algo;
  }

  std::unique_ptr<cublasLtMatmulDescOpaque_t, cublasStatus_t (*)(cublasLtMatmulDesc_t)> operation_{
      nullptr, cublasLtMatmulDescDestroy};
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

/// The library's handle and the plans of all shapes so far. One workspace: GEMMs are put into the
/// compute stream, one after another. Never destroyed, since CUDA may be gone before main() ends.
class Library {
 public:
  static Library& instance() {
    static auto& library = *new Library;
    return library;
  }

  void multiply(device::Stream& stream, const Matrix& c, const Matrix& a, const Matrix& b,
                Accumulate accumulate) {
    const Problem problem{c.rows,         c.cols,          a.cols,          a.dtype,
                          c.dtype,        a.is_transposed, b.is_transposed, a.row_stride,
                          b.row_stride,   c.row_stride,    alignment_of(a), alignment_of(b),
                          alignment_of(c)};
    auto found = plans_.find(problem);
    if (found == plans_.end())
      found = plans_.emplace(problem, std::make_unique<Plan>(handle_, c, a, b, candidate_)).first;
    found->second->run(handle_, c, a, b, accumulate, workspace_.data(),
                       device::cuda::native(stream));
  }

  void use_candidate(int candidate) {
    candidate_ = candidate;
    plans_.clear();
  }

  /// Room for a product that has to be cast; used in the compute stream's order only.
  Tensor wide(device::Stream& stream, std::int64_t rows, std::int64_t cols) {
    const std::int64_t bytes = rows * cols * size_of(DType::f32);
    if (wide_.bytes() < bytes) {
      stream.record().wait();  // nobody reads the former one any more
      wide_ = device::Buffer(bytes);
    }
    return wide_.tensor(DType::f32, {rows, cols});
  }

 private:
  Library() { check(cublasLtCreate(&handle_), "cublasLtCreate"); }

  cublasLtHandle_t handle_ = nullptr;
  int candidate_ = 0;
  device::Buffer workspace_{workspace_bytes};
  device::Buffer wide_;
  std::map<Problem, std::unique_ptr<Plan>> plans_;
};

}  // namespace

void gemm(device::Stream& stream, const Matrix& c, const Matrix& a, const Matrix& b,
          Accumulate accumulate) {
  expects(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows && !c.is_transposed,
          "a product of {} x {} and {} x {} into {} x {}", a.rows, a.cols, b.rows, b.cols, c.rows,
          c.cols);
  expects(a.dtype == b.dtype, "a product of {} and {}", name_of(a.dtype), name_of(b.dtype));
  if (c.rows == 0 || c.cols == 0) return;
  auto& library = Library::instance();
  if (a.dtype != DType::f32 || c.dtype == DType::f32)
    return library.multiply(stream, c, a, b, accumulate);
  // cuBLASLt does not narrow a product of fp32 matrices. Only gradients of an fp32 model that are
  // reduced in bf16 come here, and they are dense.
  expects(c.row_stride == c.cols, "a narrowed product with rows apart");
  const Tensor wide = library.wide(stream, c.rows, c.cols);
  library.multiply(stream, Matrix(wide), a, b, Accumulate::no);
  const Tensor narrow(c.data, c.dtype, {c.rows, c.cols});
  accumulate == Accumulate::yes ? add(stream, narrow, wide) : copy(stream, narrow, wide);
}

void use_gemm_candidate(int candidate) {
  expects(0 <= candidate && candidate < gemm_candidates, "candidate {} of {}", candidate,
          gemm_candidates);
  Library::instance().use_candidate(candidate);
}

}  // namespace llamesh::ops::cuda
