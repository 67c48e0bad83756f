#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/tensor.hpp"
#include "device/stream.hpp"

namespace llamesh::ops::cuda {

/// cuBLASLt's workspace in device memory: the size that Hopper's kernels ask for.
inline constexpr std::int64_t gemm_workspace_bytes = 33'554'432;

/// A matrix in device memory for a GEMM: rows x cols, row-major with `row_stride` elements between
/// rows, or the transpose.
struct Matrix {
  explicit Matrix(const Tensor& tensor, const float* scales = nullptr)
      : data(tensor.data()),
        dtype(tensor.dtype()),
        rows(tensor.rows()),
        cols(tensor.cols()),
        row_stride(tensor.row_stride()),
        scales(scales) {}
  Matrix transposed() const {
    Matrix result = *this;
    result.is_transposed = !is_transposed;
    result.rows = cols;
    result.cols = rows;
    return result;
  }

  void* data;
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t row_stride;     ///< in memory, transposed or not
  bool is_transposed = false;  ///< element (i, j) is at j * row_stride + i
  const float* scales;         ///< of e4m3: by which rows in memory are multiplied
};

/// c = a b, or c += a b, by cuBLASLt. a and b share a dtype; c has the same or fp32. Accumulates in
/// fp32 (fp32 matrices are multiplied in fp32, not TF32). e4m3 matrices have scales, their columns
/// are contracted over (b is transposed), and c is bf16. Queries cuBLASLt once per shape and caches
/// the algorithm, chosen as described in ops/gemm_algorithms.hpp.
void gemm(device::Stream& stream, const Matrix& c, const Matrix& a, const Matrix& b,
          Accumulate accumulate);

/// See ops/arithmetic.hpp.
std::string arithmetic();
/// See ops/gemm_algorithms.hpp.
bool multiplies_fp8();
void emulate_fp8(bool emulate);
void use_gemm_sm_count_target(int count);
void use_gemm_candidate(int candidate);
void tune_gemms();
std::string write_gemm_table(const std::filesystem::path& file);
void use_gemm_table(const std::filesystem::path& file);

}  // namespace llamesh::ops::cuda
