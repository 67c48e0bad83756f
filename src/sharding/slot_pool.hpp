#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "device/buffer.hpp"
#include "device/memory_meter.hpp"
#include "device/stream.hpp"

namespace llamesh::sharding {

/// Buffers that units use in turn, for gathered parameters or gradients. The pool grows during the
/// first step only: after that a unit gets its previous slot. It depends only on the order of
/// calls, so it is the same on every rank and `allocate` may be collective.
class SlotPool {
 public:
  /// `allocate(numel)` makes a buffer for that many elements. `behind`: number of released slots to
  /// leave alone, allocating a new one instead, because a collective still reads them.
  SlotPool(std::function<device::Buffer(std::int64_t)> allocate, std::size_t units,
           std::size_t behind);

  struct Slot {
    device::Buffer buffer;
    std::int64_t numel;        ///< capacity
    device::Event free_after;  ///< its previous contents are in use until then
  };
  /// Returns a slot for a unit with `numel` elements. It counts as in use until released.
  Slot& acquire(std::size_t unit, std::int64_t numel);
  /// Allows the unit's slot to be reused after the event.
  void release(std::size_t unit, device::Event free_after);

 private:
  static constexpr auto none = std::numeric_limits<std::size_t>::max();
  struct Entry {
    Slot slot;
    std::size_t owner = none;   ///< unit that holds it
    std::int64_t returned = 0;  ///< time of the last release, counted in calls
    device::ScopedAllocation allocation;
  };
  std::size_t choose(std::size_t unit, std::int64_t numel);

  std::function<device::Buffer(std::int64_t)> allocate_;
  std::size_t behind_;
  std::int64_t clock_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::size_t> slot_of_;  ///< per unit: its current or previous slot
};

}  // namespace llamesh::sharding
