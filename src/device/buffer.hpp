#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/tensor.hpp"
#include "device/memory_meter.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// Accounting for a buffer: all its bytes count as in use while it lives (`yes`), or only those
/// that a pool or arena hands out, which then creates the ScopedAllocations (`no`).
enum class Counted : bool { no, yes };

/// Sets advice on saving memory, appended to out-of-memory messages. `how` must outlive its use.
void advise_on_memory(const char* how);
/// Returns "; " and the advice, or an empty string if none was set.
std::string memory_advice();

/// Storage for a tensor: device memory or host memory (pinned on a machine with GPUs). On the
/// CPU backend both are the same memory, counted separately.
enum class MemoryKind : std::uint8_t { device, host };
/// Returns true if the host can read and write such a tensor.
bool host_accessible(MemoryKind kind);
/// Returns the stream whose kernels use such tensors.
Stream& stream_of(MemoryKind kind);

/// Owner of a memory block on this process's device, 64-byte aligned and initially zero. Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// Allocates `bytes`. Throws a user error with the sizes if memory runs out.
  explicit Buffer(std::int64_t bytes, Counted counted = Counted::yes);
  /// Adopts memory that `owner` keeps alive (a slice of an MPI shared-memory window). `own_bytes`
  /// of it count as this process's.
  Buffer(std::shared_ptr<void> owner, std::byte* data, std::int64_t bytes, std::int64_t own_bytes);

  /// Allocates host memory that the host may access on any device, even a simulated one. It is
  /// pinned for a GPU, so that copies run at full speed. MemoryMeter::host() counts it.
  static Buffer on_host(std::int64_t bytes);
  /// Allocates zeroed memory for device tensors or, like on_host(), host tensors. On a simulated
  /// device it has no memory behind it.
  static Buffer in(MemoryKind memory, std::int64_t bytes);

  explicit operator bool() const { return owner_ != nullptr; }
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  /// Returns the bytes that count as this process's own: all, or its part of shared memory.
  std::int64_t own_bytes() const { return own_bytes_; }
  /// From now on, a pool counts what it hands out from this buffer.
  void stop_counting() { allocation_.reset(); }

  /// Returns a dense view that starts at byte `offset`.
  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape,
                std::int64_t offset = 0) const;

 private:
  static Buffer on_host(std::int64_t bytes, std::shared_ptr<void> allocate(std::int64_t bytes));

  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t own_bytes_ = 0;
  ScopedAllocation allocation_;
};

}  // namespace llamesh::device
