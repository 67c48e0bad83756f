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

/// Whether the bytes of a buffer count as in use while it lives, or only those that a pool or an
/// arena hands out of it (which then makes the ScopedAllocations).
enum class Counted : bool { no, yes };

/// Sets advice on how to use less memory, which out-of-memory messages end with. `how` must outlive
/// its use.
void advise_on_memory(const char* how);
/// "; " and the advice, or nothing where none was given.
std::string memory_advice();

/// Where a tensor is stored: in device memory, or in host memory (pinned, on a machine with GPUs).
/// On the CPU backend the memory is the same, and only counted apart.
enum class MemoryKind : std::uint8_t { device, host };
/// Whether the host can read and write a tensor in such memory.
bool host_accessible(MemoryKind kind);
/// The stream whose kernels use tensors in such memory.
Stream& stream_of(MemoryKind kind);

/// Owns a block of memory on this process's device, 64-byte aligned and zero at first. Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// Allocates `bytes`; throws a user error with the sizes when there is not enough.
  explicit Buffer(std::int64_t bytes, Counted counted = Counted::yes);
  /// Adopts memory that `owner` keeps alive (a slice of an MPI shared-memory window);
  /// `own_bytes` of it count as this process's.
  Buffer(std::shared_ptr<void> owner, std::byte* data, std::int64_t bytes, std::int64_t own_bytes);

  /// Host memory that the host may touch on any device, also on a simulated one; pinned for a GPU,
  /// so that copies run at full speed. Counted by MemoryMeter::host().
  static Buffer on_host(std::int64_t bytes);
  /// What a device's or, like on_host(), the host's tensors are stored in, zero at first; without
  /// memory behind it where the device is simulated.
  static Buffer in(MemoryKind memory, std::int64_t bytes);

  explicit operator bool() const { return owner_ != nullptr; }
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  /// Bytes of it that count as this process's own: all, or its part of shared memory.
  std::int64_t own_bytes() const { return own_bytes_; }
  /// From now on a pool counts what it hands out of this buffer.
  void stop_counting() { allocation_.reset(); }

  /// A dense view of the buffer from byte `offset` on.
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
