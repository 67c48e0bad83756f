#pragma once

#include <atomic>
#include <cstdint>

namespace llamesh::comm {

/// A barrier between the ranks on one node, in memory that they share and that starts zeroed. After
/// it, everybody sees all writes made before it. A waiting rank yields briefly and then sleeps in
/// the kernel (a futex). It wakes up periodically, so that stop_waiting() ends the wait.
class NodeBarrier {
 public:
  void arrive_and_wait(int ranks);

 private:
  void sleep_while(std::uint32_t generation);

  std::atomic<std::uint32_t> arrived_{0};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a barrier between processes");

}  // namespace llamesh::comm
