#include "core/tensor.hpp"

namespace llamesh {

Tensor::Tensor(void* data, DType dtype, std::span<const std::int64_t> shape)
    : data_(data), dims_(static_cast<int>(shape.size())), dtype_(dtype) {
  expects(dims_ >= 1 && dims_ <= max_dims, "a tensor has 1 to {} dims, not {}", max_dims, dims_);
  std::size_t i = 0;
  for (auto n : shape) shape_[i++] = n;
  row_stride_ = cols();
}

std::int64_t Tensor::numel() const {
  if (dims_ == 0) return 0;
  std::int64_t n = 1;
  for (int i = 0; i < dims_; ++i) n *= size(i);
  return n;
}

Tensor Tensor::slice_rows(std::int64_t first, std::int64_t count) const {
  expects(first >= 0 && count >= 0 && first + count <= rows(), "rows [{}, {}) of {}", first,
          first + count, rows());
  Tensor part(static_cast<std::byte*>(data_) + first * row_stride_ * size_of(dtype_), dtype_,
              {count, cols()});
  part.row_stride_ = row_stride_;
  return part;
}

Tensor Tensor::slice_cols(std::int64_t first, std::int64_t count) const {
  expects(first >= 0 && count >= 0 && first + count <= cols(), "columns [{}, {}) of {}", first,
          first + count, cols());
  Tensor part(static_cast<std::byte*>(data_) + first * size_of(dtype_), dtype_, {rows(), count});
  part.row_stride_ = row_stride_;
  return part;
}

Tensor Tensor::slice(std::int64_t first, std::int64_t count) const {
  expects(dense() && first >= 0 && count >= 0 && first + count <= numel(),
          "elements [{}, {}) of {}", first, first + count, numel());
  return {static_cast<std::byte*>(data_) + first * size_of(dtype_), dtype_, {count}};
}

Tensor Tensor::reshape(std::span<const std::int64_t> shape) const {
  Tensor view(data_, dtype_, shape);
  expects(dense() && view.numel() == numel(), "a view of {} elements cannot take {}", numel(),
          view.numel());
  return view;
}

}  // namespace llamesh
