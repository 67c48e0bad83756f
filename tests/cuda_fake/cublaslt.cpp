#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "core/dtype.hpp"
#include "fake_stream.hpp"

// The part of cuBLASLt that llamesh calls: D = alpha op(A) op(B) + beta C, column-major, fp32 sums.
// A product too large for this is a GPU speed measurement and does nothing. There are two
// algorithms, which sum in opposite orders; another SM target swaps them. FAKE_GEMM_SLOW_FIRST=1
// makes the first choice the slower one.

struct cublasLtContext {};

namespace {

constexpr std::int64_t max_multiplications = std::int64_t{1} << 28U;

struct Layout {
  cudaDataType_t type;
  std::int64_t rows, cols, stride;

  float at(const void* data, std::int64_t row, std::int64_t col) const {
    const auto i = static_cast<std::size_t>(col * stride + row);
    if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
    if (type == CUDA_R_8F_E4M3)
      return static_cast<float>(static_cast<const llamesh::e4m3*>(data)[i]);
    return static_cast<float>(static_cast<const llamesh::bf16*>(data)[i]);
  }
  void put(void* data, std::int64_t row, std::int64_t col, float value) const {
    const auto i = static_cast<std::size_t>(col * stride + row);
    if (type == CUDA_R_32F)
      static_cast<float*>(data)[i] = value;
    else
      static_cast<llamesh::bf16*>(data)[i] = llamesh::bf16(value);
  }
};
struct Operation {
  bool a_transposed = false, b_transposed = false;
  std::int32_t sm_count_target = 0;
  /// A scale for each of op(A)'s rows and op(B)'s columns, if the modes say so.
  const float *a_scales = nullptr, *b_scales = nullptr;
  std::int32_t a_mode = 0, b_mode = 0;

  /// What cuBLASLt asks for FP8 matrices on Hopper.
  bool takes_fp8(const Layout& a, const Layout& b, const Layout& d) const {
    return a_transposed && !b_transposed && d.type == CUDA_R_16BF && a.rows % 16 == 0 &&
           a.cols % 16 == 0 && a.stride % 16 == 0 && b.stride % 16 == 0 && a_scales && b_scales &&
           a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && b_mode == a_mode;
  }
};
/// Alignments that an algorithm relies on, as promised in the preference.
struct Alignments {
  std::uint32_t a = 256, b = 256, c = 256, d = 256;
};
struct Algorithm {
  std::uint64_t found;  // set by the heuristic if it has an algorithm
  Alignments alignments;
  bool sums_backwards;
};
constexpr std::uint64_t is_found = 0xA190;

bool aligned(const void* data, std::uint32_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

/// op(X) with its inner dimension contiguous: elements[outer * inner_size + inner].
std::vector<float> lines(const Layout& x, const void* data, bool inner_is_rows) {
  const auto inner = inner_is_rows ? x.rows : x.cols, outer = inner_is_rows ? x.cols : x.rows;
  std::vector<float> numbers(static_cast<std::size_t>(inner * outer));
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i)
      numbers[static_cast<std::size_t>(o * inner + i)] =
          inner_is_rows ? x.at(data, i, o) : x.at(data, o, i);
  return numbers;
}

void multiply(const Operation& operation, bool sums_backwards, float alpha, const void* a,
              const Layout& la, const void* b, const Layout& lb, float beta, void* d,
              const Layout& ld) {
  const auto inner = operation.a_transposed ? la.rows : la.cols;
  if (ld.rows * ld.cols * inner > max_multiplications) return;
  const auto left = lines(la, a, operation.a_transposed);
  const auto right = lines(lb, b, !operation.b_transposed);
  for (std::int64_t col = 0; col < ld.cols; ++col)
    for (std::int64_t row = 0; row < ld.rows; ++row) {
      const float* x = left.data() + row * inner;
      const float* y = right.data() + col * inner;
      float sum = 0;
      if (sums_backwards)
        for (std::int64_t k = inner; k-- > 0;) sum += x[k] * y[k];
      else
        for (std::int64_t k = 0; k < inner; ++k) sum += x[k] * y[k];
      if (operation.a_scales != nullptr) sum *= operation.a_scales[row] * operation.b_scales[col];
      ld.put(d, row, col, alpha * sum + (beta == 0 ? 0 : beta * ld.at(d, row, col)));
    }
}

template <class T, class Opaque>
T& as(Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  return *reinterpret_cast<T*>(opaque);
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t /*status*/) {
  return "an error of the fake cuBLASLt";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  *layout = new cublasLtMatrixLayoutOpaque_t{};
  as<Layout>(*layout) = {type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols),
                         ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *operation = new cublasLtMatmulDescOpaque_t{};
  as<Operation>(*operation) = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& mine = as<Operation>(operation);
  const auto keep = [&](auto& member) {
    if (bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  if (attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET) return keep(mine.sm_count_target);
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) return keep(mine.a_scales);
  if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) return keep(mine.b_scales);
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_MODE) return keep(mine.a_mode);
  if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_MODE) return keep(mine.b_mode);
  cublasOperation_t what;
  if (keep(what) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
  (attribute == CUBLASLT_MATMUL_DESC_TRANSA ? mine.a_transposed : mine.b_transposed) =
      what == CUBLAS_OP_T;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  as<Alignments>(*preference) = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, std::size_t bytes) {
  const std::size_t wanted = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4;
  if (bytes != wanted) return CUBLAS_STATUS_INVALID_VALUE;
  auto& mine = as<Alignments>(preference);
  std::uint32_t number = 0;
  std::memcpy(&number, value, sizeof number);
  if (what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) mine.a = number;
  if (what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) mine.b = number;
  if (what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES) mine.c = number;
  if (what == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) mine.d = number;
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() {
  return 130200;
}
/// The first result has no algorithm if more than one is requested.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t* results,
    int* count) {
  const auto& op = as<Operation>(operation);
  const auto &la = as<Layout>(a), &lb = as<Layout>(b), &ld = as<Layout>(d);
  const auto m = op.a_transposed ? la.cols : la.rows, k = op.a_transposed ? la.rows : la.cols;
  const auto n = op.b_transposed ? lb.rows : lb.cols, k_too = op.b_transposed ? lb.cols : lb.rows;
  const bool sound = m == ld.rows && n == ld.cols && k == k_too && la.stride >= la.rows &&
                     lb.stride >= lb.rows && ld.stride >= ld.rows && la.type == lb.type &&
                     (la.type == CUDA_R_8F_E4M3 ? op.takes_fp8(la, lb, ld)
                                                : ld.type == la.type || ld.type == CUDA_R_32F);
  *count = sound ? std::min(wanted, 3) : 0;
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    const bool good = i > 0 || wanted == 1;
    results[i].state = good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    if (good)
      as<Algorithm>(&results[i].algo) = {is_found, as<Alignments>(preference),
                                         (i == 2) != (op.sm_count_target > 0)};
  }
  return sound ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t /*c_layout*/, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t /*bytes*/, cudaStream_t stream) {
  if (c != d) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto& chosen = as<const Algorithm>(algorithm);
  const auto& bytes = chosen.alignments;
  if (chosen.found != is_found || !aligned(workspace, 256) || !aligned(a, bytes.a) ||
      !aligned(b, bytes.b) || !aligned(c, bytes.c) || !aligned(d, bytes.d))
    return CUBLAS_STATUS_INVALID_VALUE;
  static const bool slow_first = std::getenv("FAKE_GEMM_SLOW_FIRST") != nullptr;
  fake_cuda::enqueue(
      stream,
      [backwards = chosen.sums_backwards, op = as<Operation>(operation), la = as<Layout>(a_layout),
       lb = as<Layout>(b_layout), ld = as<Layout>(d_layout), a, b, d,
       alpha = *static_cast<const float*>(alpha), beta = *static_cast<const float*>(beta)] {
        if (slow_first && !backwards) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        multiply(op, backwards, alpha, a, la, b, lb, beta, d, ld);
      });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
