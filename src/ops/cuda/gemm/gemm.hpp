#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"
#include "device/stream.hpp"

namespace llamesh::ops::cuda {

/// Of device memory, for cuBLASLt: what Hopper's kernels ask for.
inline constexpr std::int64_t gemm_workspace_bytes = 33'554'432;

/// A matrix in device memory as a GEMM sees it: rows x cols, row-major with `row_stride` elements
/// between rows, or the transpose of that.
struct Matrix {
  explicit Matrix(const Tensor& tensor)
      : data(tensor.data()),
        dtype(tensor.dtype()),
        rows(tensor.rows()),
        cols(tensor.cols()),
        row_stride(tensor.row_stride()) {}
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
  std::int64_t row_stride;     ///< of the memory, transposed or not
  bool is_transposed = false;  ///< element (i, j) is at j * row_stride + i
};

/// c = a b, or c += a b, by cuBLASLt: a and b of one dtype, c fp32 or theirs, sums in fp32 (fp32
/// matrices are multiplied in fp32, not in TF32). ops/gemm_algorithms.hpp says which of cuBLASLt's
/// algorithms a shape gets; it is asked once and kept.
void gemm(device::Stream& stream, const Matrix& c, const Matrix& a, const Matrix& b,
          Accumulate accumulate);

/// See ops/gemm_algorithms.hpp.
void use_gemm_sm_count_target(int count);
void use_gemm_candidate(int candidate);
void tune_gemms();
std::string write_gemm_table(const std::filesystem::path& file);
void use_gemm_table(const std::filesystem::path& file);

}  // namespace llamesh::ops::cuda
