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

/// Buffers that units use in turn, for their gathered parameters or their gradients. It grows in
/// the first step and then no more: a unit gets the slot that it had before. What it does depends
/// only on the order of calls, so it is the same on every rank and allocate may be collective.
class SlotPool {
 public:
  /// `allocate(numel)` makes a buffer for that many elements. `behind`: how many released slots
  /// are left alone in favour of a new one, because a collective is still reading them.
  SlotPool(std::function<device::Buffer(std::int64_t)> allocate, std::size_t units,
           std::size_t behind);

  struct Slot {
    device::Buffer buffer;
    std::int64_t numel;        ///< capacity
    device::Event free_after;  ///< its former contents are in use until then
  };
  /// A slot for a unit of `numel` elements, counted as in use until it is released.
  Slot& acquire(std::size_t unit, std::int64_t numel);
  /// The unit's slot may be used again after the event.
  void release(std::size_t unit, device::Event free_after);

 private:
  static constexpr auto none = std::numeric_limits<std::size_t>::max();
  struct Entry {
    Slot slot;
    std::size_t owner = none;   ///< the unit that has it
    std::int64_t returned = 0;  ///< when it was released last, counted in calls
    device::ScopedAllocation allocation;
  };
  std::size_t choose(std::size_t unit, std::int64_t numel);

  std::function<device::Buffer(std::int64_t)> allocate_;
  std::size_t behind_;
  std::int64_t clock_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::size_t> slot_of_;  ///< by unit: the slot that it has or had
};

}  // namespace llamesh::sharding
