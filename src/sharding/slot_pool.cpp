#include "sharding/slot_pool.hpp"

#include <utility>

#include "core/error.hpp"

namespace llamesh::sharding {
SlotPool::SlotPool(std::function<device::Buffer(std::int64_t)> allocate, std::size_t units,
                   std::size_t behind)
    : allocate_(std::move(allocate)), behind_(behind), slot_of_(units, none) {}

std::size_t SlotPool::choose(std::size_t unit, std::int64_t numel) {
  const std::size_t before = slot_of_[unit];
  if (before != none && entries_[before]->owner == none) return before;
  std::size_t oldest = none;
  std::size_t fitting = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i]->owner != none || entries_[i]->slot.numel < numel) continue;
    ++fitting;
    if (oldest == none || entries_[i]->returned < entries_[oldest]->returned) oldest = i;
  }
  return fitting > behind_ ? oldest : none;
}

SlotPool::Slot& SlotPool::acquire(std::size_t unit, std::int64_t numel) {
  std::size_t at = choose(unit, numel);
  if (at == none) {
    at = entries_.size();
    entries_.push_back(std::make_unique<Entry>());
    entries_[at]->slot = {allocate_(numel), numel, {}};
    entries_[at]->slot.buffer.stop_counting();
  }
  Entry& entry = *entries_[at];
  entry.owner = unit;
  // The product of bytes and elements may exceed 64 bits.
  const auto own = static_cast<__int128>(entry.slot.buffer.own_bytes()) * numel / entry.slot.numel;
  entry.allocation = device::ScopedAllocation(static_cast<std::int64_t>(own));
  slot_of_[unit] = at;
  return entry.slot;
}

void SlotPool::release(std::size_t unit, device::Event free_after) {
  expects(slot_of_[unit] != none && entries_[slot_of_[unit]]->owner == unit,
          "unit {} gave back a slot that it did not have", unit);
  Entry& entry = *entries_[slot_of_[unit]];
  entry.slot.free_after = std::move(free_after);
  entry.owner = none;
  entry.returned = ++clock_;
  entry.allocation.reset();
}

}  // namespace llamesh::sharding
