#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace llamesh::device {

/// Purpose of an allocation.
enum class MemoryUse : std::uint8_t {
  other,
  weights,
  gradients,            ///< this rank's shards
  optimizer,            ///< Adam moments or momentum
  gathered_weights,     ///< unsharded parameters
  unsharded_gradients,  ///< not yet reduced
  activations,
  tensor_parallel,   ///< gathered rows and partial sums in the residual stream
  expert_parallel,   ///< rows that ranks exchange for their experts
  context_parallel,  ///< keys and values gathered from ranks that divide the sequence
  scratch,           ///< for kernels and collectives
};
inline constexpr auto memory_uses = static_cast<std::size_t>(MemoryUse::scratch) + 1;
/// Returns a display name such as "gathered weights".
const char* name_of(MemoryUse use);
/// Bytes by MemoryUse.
using MemoryByUse = std::array<std::int64_t, memory_uses>;

/// Scope that tags the calling thread's allocations with `use`.
class ScopedMemoryTag {
 public:
  explicit ScopedMemoryTag(MemoryUse use);
  ~ScopedMemoryTag();
  ScopedMemoryTag(const ScopedMemoryTag&) = delete;
  ScopedMemoryTag& operator=(const ScopedMemoryTag&) = delete;

 private:
  MemoryUse before_;
};

/// Counter for the bytes that this process uses on its device: live buffers, and for pooled ones
/// the part handed out. A second meter counts host memory (MemoryKind::host). Both exist once per
/// process and once per Simulation.
class MemoryMeter {
 public:
  /// Returns the device meter for the process, or for the calling thread's Simulation.
  static MemoryMeter& instance();
  /// Returns the meter for host memory, if it is separate from the device's.
  static MemoryMeter& host();

  std::int64_t in_use() const;
  /// Returns the peak bytes in use since the last start_interval().
  std::int64_t peak() const;
  MemoryByUse by_use() const;
  /// Returns the usage at the time of the peak.
  MemoryByUse by_use_at_peak() const;
  void start_interval();

 private:
  friend class ScopedAllocation;
  void add(std::int64_t bytes, MemoryUse use);

  mutable std::mutex mutex_;
  std::int64_t in_use_ = 0;
  std::int64_t peak_ = 0;
  MemoryByUse now_{};
  MemoryByUse at_peak_{};
};

/// Scope in which bytes count as in use. Allocates nothing itself.
class ScopedAllocation {
 public:
  ScopedAllocation() = default;
  /// Uses the thread's current ScopedMemoryTag tag.
  explicit ScopedAllocation(std::int64_t bytes);
  ScopedAllocation(std::int64_t bytes, MemoryUse use);
  /// Uses a meter other than the device's.
  ScopedAllocation(MemoryMeter& meter, std::int64_t bytes);
  ~ScopedAllocation() { reset(); }
  ScopedAllocation(ScopedAllocation&& other) noexcept
      : meter_(other.meter_), bytes_(other.bytes_), use_(other.use_) {
    other.bytes_ = 0;
  }
  ScopedAllocation& operator=(ScopedAllocation&& other) noexcept;
  ScopedAllocation(const ScopedAllocation&) = delete;
  ScopedAllocation& operator=(const ScopedAllocation&) = delete;
  void reset() noexcept;

 private:
  MemoryMeter* meter_ = nullptr;
  std::int64_t bytes_ = 0;
  MemoryUse use_ = MemoryUse::other;
};

}  // namespace llamesh::device
