#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace llamesh::device {

/// What memory is used for.
enum class MemoryUse : std::uint8_t {
  other,
  weights,
  gradients,            ///< this rank's shards
  optimizer,            ///< its moments
  gathered_weights,     ///< unsharded parameters of the units that are gathered
  unsharded_gradients,  ///< of the units whose reduction is not done
  activations,
  tensor_parallel,  ///< gathered rows and summands of the residual stream
  scratch,          ///< of kernels and collectives
};
inline constexpr std::size_t memory_uses = 9;
/// "gathered weights".
const char* name_of(MemoryUse use);
/// Bytes by MemoryUse.
using MemoryByUse = std::array<std::int64_t, memory_uses>;

/// What the calling thread allocates is for `use`, as long as the object lives.
class AllocatesFor {
 public:
  explicit AllocatesFor(MemoryUse use);
  ~AllocatesFor();
  AllocatesFor(const AllocatesFor&) = delete;
  AllocatesFor& operator=(const AllocatesFor&) = delete;

 private:
  MemoryUse before_;
};

/// Counts the bytes that this process has in use on its device: live buffers, and of pooled ones
/// the part that is handed out. A second one counts host memory (MemoryKind::host). Both are there
/// once per process, and once for each Simulation.
class MemoryMeter {
 public:
  /// The process's, or that of the calling thread's Simulation.
  static MemoryMeter& instance();
  /// The same of memory of the host beside its device.
  static MemoryMeter& host();

  std::int64_t in_use() const;
  /// The most bytes in use at any instant since the last call of start_interval().
  std::int64_t peak() const;
  MemoryByUse by_use() const;
  /// What was in use when the peak was reached.
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

/// Counts bytes as in use for as long as the object lives; it allocates nothing itself.
class ScopedAllocation {
 public:
  ScopedAllocation() = default;
  /// For what the thread's AllocatesFor says.
  explicit ScopedAllocation(std::int64_t bytes);
  ScopedAllocation(std::int64_t bytes, MemoryUse use);
  /// By another meter than the device's.
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
