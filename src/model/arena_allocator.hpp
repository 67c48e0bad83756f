#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/tensor.hpp"

namespace llamesh::model {

/// Arena that hands out consecutive aligned views. Without memory behind it, it only measures.
class ArenaAllocator {
 public:
  explicit ArenaAllocator(std::byte* base) : base_(base) {}
  Tensor take(DType dtype, std::initializer_list<std::int64_t> shape) {
    const Tensor at(base_ ? base_ + bytes_ : nullptr, dtype, shape);
    bytes_ += (at.bytes() + 63) / 64 * 64;
    return at;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::int64_t bytes_ = 0;
};

}  // namespace llamesh::model
