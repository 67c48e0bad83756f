#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/buffer.hpp"

namespace llamesh::ops::cpu {

/// Host memory for a running kernel, even in a process that uses a GPU (for an offloaded optimizer
/// step, or a kernel's test). It grows to the largest request and is then kept, so a training step
/// allocates nothing after the first one. Declare it `thread_local static` in the kernel.
class Scratch {
 public:
  /// Returns at least `bytes` bytes, 64-byte aligned, uninitialized.
  std::byte* bytes(std::int64_t bytes) {
    if (buffer_.bytes() < bytes) {
      buffer_ = {};  // free first: the old and new buffer must not coexist
      const device::ScopedMemoryTag use(device::MemoryUse::scratch);
      const bool is_host = device::host_accessible(device::MemoryKind::device);
      buffer_ = is_host ? device::Buffer(bytes) : device::Buffer::on_host(bytes);
    }
    return buffer_.data();
  }
  /// Returns space for at least `count` elements.
  template <class T>
  T* array(std::int64_t count) {
    return reinterpret_cast<T*>(bytes(count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  device::Buffer buffer_;
};

/// Allocator for consecutive pieces from a scratch array, each 64-byte aligned.
class Pieces {
 public:
  explicit Pieces(float* next) : next_(next) {}
  float* take(std::int64_t count) {
    auto* piece = next_;
    next_ += padded(count);
    return piece;
  }
  /// Returns how many elements a piece with `count` elements occupies.
  static constexpr std::int64_t padded(std::int64_t count) { return (count + 15) / 16 * 16; }

 private:
  float* next_;
};

}  // namespace llamesh::ops::cpu
