#pragma once

#include <atomic>
#include <cstdint>

namespace llamesh::device {

/// Counts the bytes that this process has in use on its device: live buffers, and of pooled ones
/// the part that is handed out. One per process; every ScopedAllocation reports to it.
class MemoryMeter {
 public:
  static MemoryMeter& instance();

  std::int64_t in_use() const { return in_use_.load(); }
  /// The most bytes in use at any instant since the last call of start_interval().
  std::int64_t peak() const { return peak_.load(); }
  void start_interval() { peak_.store(in_use_.load()); }

 private:
  friend class ScopedAllocation;
  void add(std::int64_t bytes);

  std::atomic<std::int64_t> in_use_{0};
  std::atomic<std::int64_t> peak_{0};
};

/// Counts bytes as in use for as long as the object lives; it allocates nothing itself.
class ScopedAllocation {
 public:
  ScopedAllocation() = default;
  explicit ScopedAllocation(std::int64_t bytes);
  ~ScopedAllocation() { reset(); }
  ScopedAllocation(ScopedAllocation&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = 0; }
  ScopedAllocation& operator=(ScopedAllocation&& other) noexcept;
  ScopedAllocation(const ScopedAllocation&) = delete;
  ScopedAllocation& operator=(const ScopedAllocation&) = delete;
  void reset() noexcept;

 private:
  std::int64_t bytes_ = 0;
};

}  // namespace llamesh::device
