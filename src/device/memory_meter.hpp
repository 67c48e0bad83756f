#pragma once

#include <atomic>
#include <cstdint>

namespace llamesh::device {

/// Counts the bytes that this process has in use on its device: live buffers, and of pooled ones
/// the part that is lent out. One per process; every Claim reports to it.
class MemoryMeter {
 public:
  static MemoryMeter& instance();

  std::int64_t in_use() const { return in_use_.load(); }
  /// The most bytes in use at any instant since the last call of start_interval().
  std::int64_t peak() const { return peak_.load(); }
  void start_interval() { peak_.store(in_use_.load()); }

 private:
  friend class Claim;
  void add(std::int64_t bytes);

  std::atomic<std::int64_t> in_use_{0};
  std::atomic<std::int64_t> peak_{0};
};

/// Bytes counted as in use for as long as the claim lives.
class Claim {
 public:
  Claim() = default;
  explicit Claim(std::int64_t bytes);
  ~Claim() { reset(); }
  Claim(Claim&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = 0; }
  Claim& operator=(Claim&& other) noexcept;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  void reset() noexcept;

 private:
  std::int64_t bytes_ = 0;
};

}  // namespace llamesh::device
