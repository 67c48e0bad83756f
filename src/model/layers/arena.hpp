#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/tensor.hpp"
#include "device/buffer.hpp"

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

/// Memory for tensors whose sizes are known only within a pass. It grows and never shrinks.
class GrowingMemory {
 public:
  explicit GrowingMemory(device::MemoryUse use) : use_(use) {}
  /// Calls take(ArenaAllocator&) to place tensors, which are valid until the next call.
  template <class Take>
  void place(const Take& take) {
    ArenaAllocator measured(nullptr);
    take(measured);
    if (measured.bytes() > buffer_.bytes()) grow(measured.bytes());
    ArenaAllocator placed(buffer_.data());
    take(placed);
  }

 private:
  /// Leaves room for sizes that vary from step to step.
  void grow(std::int64_t bytes) {
    const device::ScopedMemoryTag use(use_);
    buffer_ = {};
    buffer_ = device::Buffer(bytes + bytes / 16);
  }

  device::MemoryUse use_;
  device::Buffer buffer_;
};

}  // namespace llamesh::model
