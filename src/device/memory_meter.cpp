#include "device/memory_meter.hpp"

namespace llamesh::device {

MemoryMeter& MemoryMeter::instance() {
  static MemoryMeter meter;
  return meter;
}

void MemoryMeter::add(std::int64_t bytes) {
  const std::int64_t now = in_use_.fetch_add(bytes) + bytes;
  std::int64_t seen = peak_.load();
  while (now > seen && !peak_.compare_exchange_weak(seen, now)) {
  }
}

ScopedAllocation::ScopedAllocation(std::int64_t bytes) : bytes_(bytes) {
  MemoryMeter::instance().add(bytes);
}

ScopedAllocation& ScopedAllocation::operator=(ScopedAllocation&& other) noexcept {
  if (this != &other) {
    reset();
    bytes_ = other.bytes_;
    other.bytes_ = 0;
  }
  return *this;
}

void ScopedAllocation::reset() noexcept {
  if (bytes_ != 0) MemoryMeter::instance().add(-bytes_);
  bytes_ = 0;
}

}  // namespace llamesh::device
