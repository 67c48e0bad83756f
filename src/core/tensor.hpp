#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace llamesh {

/// Write mode for a result: overwrite (`no`) or add (`yes`).
enum class Accumulate : bool { no, yes };

/// A non-owning view of elements in memory (device::Buffer owns it). Row-major. Rows (all dims
/// except the last, flattened) may be strided, so a column slice of a matrix is a Tensor too.
/// Copying a Tensor copies the view.
class Tensor {
 public:
  static constexpr int max_dims = 4;

  Tensor() = default;
  /// Views `shape` at `data`, dense.
  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape);
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size())) {}

  explicit operator bool() const { return data_ != nullptr; }
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  int dims() const { return dims_; }
  std::int64_t size(int dim) const { return shape_[static_cast<std::size_t>(dim)]; }
  std::int64_t numel() const;
  std::int64_t bytes() const { return numel() * size_of(dtype_); }

  /// Matrix view: all dims except the last are rows, the last is columns.
  std::int64_t rows() const { return cols() == 0 ? 0 : numel() / cols(); }
  std::int64_t cols() const { return dims_ == 0 ? 0 : shape_[static_cast<std::size_t>(dims_ - 1)]; }
  /// Returns the elements from one row's start to the next; >= cols().
  std::int64_t row_stride() const { return row_stride_; }
  bool dense() const { return row_stride_ == cols() || rows() <= 1; }

  /// Returns rows [first, first + count) as a matrix.
  Tensor slice_rows(std::int64_t first, std::int64_t count) const;
  /// Returns columns [first, first + count) as a matrix with this row stride.
  Tensor slice_cols(std::int64_t first, std::int64_t count) const;
  /// Returns elements [first, first + count) in a dense view, as one dim.
  Tensor slice(std::int64_t first, std::int64_t count) const;
  /// Returns the same dense elements with another shape and equal numel.
  Tensor reshape(std::span<const std::int64_t> shape) const;
  Tensor reshape(std::initializer_list<std::int64_t> shape) const {
    return reshape(std::span(shape.begin(), shape.size()));
  }

  /// Returns the elements as T, which must match the dtype.
  template <class T>
  T* as() const {
    expects(dtype_of<T> == dtype_, "tensor holds {}, not {}", name_of(dtype_),
            name_of(dtype_of<T>));
    return static_cast<T*>(data_);
  }
  /// Returns a dense tensor's elements as a span.
  template <class T>
  std::span<T> span() const {
    expects(dense(), "a span needs a dense tensor");
    return {as<T>(), static_cast<std::size_t>(numel())};
  }

 private:
  void* data_ = nullptr;
  std::array<std::int64_t, max_dims> shape_{};
  std::int64_t row_stride_ = 0;
  int dims_ = 0;
  DType dtype_ = DType::f32;
};

}  // namespace llamesh
