#include "device/memory_meter.hpp"

#include <utility>

#include "device/simulated/simulation.hpp"

namespace llamesh::device {
namespace {

thread_local MemoryUse current_use = MemoryUse::other;

}  // namespace

const char* name_of(MemoryUse use) {
  switch (use) {
    case MemoryUse::other:
      return "other";
    case MemoryUse::weights:
      return "weights";
    case MemoryUse::gradients:
      return "gradients";
    case MemoryUse::optimizer:
      return "optimizer";
    case MemoryUse::gathered_weights:
      return "gathered weights";
    case MemoryUse::unsharded_gradients:
      return "unsharded gradients";
    case MemoryUse::activations:
      return "activations";
    case MemoryUse::tensor_parallel:
      return "tensor parallel";
    case MemoryUse::expert_parallel:
      return "expert parallel";
    case MemoryUse::context_parallel:
      return "context parallel";
    case MemoryUse::scratch:
      return "scratch";
  }
  return "";
}

ScopedMemoryTag::ScopedMemoryTag(MemoryUse use) : before_(std::exchange(current_use, use)) {}

ScopedMemoryTag::~ScopedMemoryTag() {
  current_use = before_;
}

MemoryMeter& MemoryMeter::instance() {
  static MemoryMeter meter;
  auto* simulation = Simulation::active();
  return simulation == nullptr ? meter : simulation->meter();
}

MemoryMeter& MemoryMeter::host() {
  static MemoryMeter meter;
  auto* simulation = Simulation::active();
  return simulation == nullptr ? meter : simulation->host_meter();
}

std::int64_t MemoryMeter::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

std::int64_t MemoryMeter::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

MemoryByUse MemoryMeter::by_use() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

MemoryByUse MemoryMeter::by_use_at_peak() const {
  const std::lock_guard lock(mutex_);
  return at_peak_;
}

void MemoryMeter::start_interval() {
  const std::lock_guard lock(mutex_);
  peak_ = in_use_;
  at_peak_ = now_;
}

void MemoryMeter::add(std::int64_t bytes, MemoryUse use) {
  const std::lock_guard lock(mutex_);
  in_use_ += bytes;
  now_[static_cast<std::size_t>(use)] += bytes;
  if (in_use_ <= peak_) return;
  peak_ = in_use_;
  at_peak_ = now_;
}

ScopedAllocation::ScopedAllocation(std::int64_t bytes) : ScopedAllocation(bytes, current_use) {}

ScopedAllocation::ScopedAllocation(std::int64_t bytes, MemoryUse use)
    : meter_(&MemoryMeter::instance()), bytes_(bytes), use_(use) {
  meter_->add(bytes, use);
}

ScopedAllocation::ScopedAllocation(MemoryMeter& meter, std::int64_t bytes)
    : meter_(&meter), bytes_(bytes), use_(current_use) {
  meter_->add(bytes, use_);
}

ScopedAllocation& ScopedAllocation::operator=(ScopedAllocation&& other) noexcept {
  if (this != &other) {
    reset();
    meter_ = other.meter_;
    use_ = other.use_;
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void ScopedAllocation::reset() noexcept {
  if (bytes_ != 0) meter_->add(-bytes_, use_);
  bytes_ = 0;
}

}  // namespace llamesh::device
