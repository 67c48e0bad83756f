#pragma once

#include <cstddef>

#include "core/error.hpp"
#include "core/tensor.hpp"

namespace llamesh::device {

/// Returns the bytes in a tensor that is copied as one range.
inline std::size_t dense_bytes(const Tensor& tensor) {
  expects(tensor.dense(), "a copy of a tensor with rows apart");
  return static_cast<std::size_t>(tensor.bytes());
}

}  // namespace llamesh::device
