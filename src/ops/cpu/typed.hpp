#pragma once

#include <cstdint>
#include <type_traits>

#include "core/tensor.hpp"

namespace llamesh::ops::cpu {

/// Calls body(std::type_identity<T>) with the C++ type for a floating-point dtype.
template <class Body>
void with_type(DType dtype, const Body& body) {
  expects(dtype == DType::f32 || dtype == DType::bf16, "this kernel takes fp32 or bf16, not {}",
          name_of(dtype));
  if (dtype == DType::f32)
    body(std::type_identity<float>{});
  else
    body(std::type_identity<bf16>{});
}

/// Rows of a matrix view: rows[m] points to the first element in row m.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;

  explicit Rows(const Tensor& tensor)
      : data(tensor ? tensor.as<std::remove_const_t<T>>() : nullptr), stride(tensor.row_stride()) {}
  Rows(T* first, std::int64_t row_stride) : data(first), stride(row_stride) {}
  /// Returns the same rows, starting at (row, col).
  Rows from(std::int64_t row, std::int64_t col = 0) const {
    return {data + row * stride + col, stride};
  }
  T* operator[](std::int64_t row) const { return data + row * stride; }
};

inline bool same_matrix_shape(const Tensor& a, const Tensor& b) {
  return a.rows() == b.rows() && a.cols() == b.cols();
}

}  // namespace llamesh::ops::cpu
