#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "ops/bf16_products.hpp"

namespace llamesh::ops::cpu {

/// A matrix view for gemm(): element (i, j) is at i * row_stride + j * col_stride. One stride is 1.
struct Matrix {
  void* data;
  DType dtype;
  std::int64_t rows, cols;
  std::int64_t row_stride, col_stride;

  explicit Matrix(const Tensor& t)
      : data(t.data()),
        dtype(t.dtype()),
        rows(t.rows()),
        cols(t.cols()),
        row_stride(t.row_stride()),
        col_stride(1) {}
  Matrix transposed() const;
  /// Returns rows [first, first + count).
  Matrix row_range(std::int64_t first, std::int64_t count) const;
};

/// The size that differs from call to call, and its largest value. One oneDNN primitive serves all
/// values, and scratch is for the largest: it does not grow when tokens choose other experts.
struct Ragged {
  enum class Size : std::int8_t { none, m, k };
  Size size = Size::none;
  std::int64_t max = 0;
};

/// c (m, n) = or += a (m, k) b (k, n) by oneDNN, with fp32 accumulation. a and b share a dtype; c
/// is row-major, fp32 or bf16. bf16 operands are multiplied natively or converted to fp32 first. If
/// c has many rows, b is packed first: copied to oneDNN's layout.
void gemm(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
          Bf16Products way = bf16_products(), Ragged ragged = {});

/// grouped_linear() itself, for kernels that prepare its operands.
void grouped_gemm(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& starts,
                  Accumulate accumulate);

/// Scratch bytes that gemm() needs for these matrices on `threads` threads: fp32 copies, and
/// oneDNN's own with a packed b.
struct GemmScratch {
  std::int64_t a = 0, b = 0, c = 0, library = 0;
};
GemmScratch gemm_scratch(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
                         std::int64_t threads, Bf16Products way = bf16_products(),
                         Ragged ragged = {});

}  // namespace llamesh::ops::cpu
