#include "comm/transports/node_barrier.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "comm/transports/backoff.hpp"

namespace llamesh::comm {
namespace {

constexpr int yields_before_futex = 64;
constexpr timespec longest_sleep{0, 50'000'000};

// Not FUTEX_PRIVATE: the waiters are other processes.
void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr,
          0);
}

}  // namespace

void NodeBarrier::arrive_and_wait(int ranks) {
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks)) {
    arrived_.store(0, std::memory_order_relaxed);
    // Sequentially consistent, like the sleepers' side: either we see the sleeper, or its futex
    // call sees the new generation and returns at once.
    generation_.store(generation + 1);
    if (sleepers_.load() > 0) futex(generation_, FUTEX_WAKE, INT_MAX, nullptr);
    return;
  }
  for (int i = 0; i < yields_before_futex; ++i) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    sched_yield();
  }
  sleep_while(generation);
}

void NodeBarrier::sleep_while(std::uint32_t generation) {
  ++sleepers_;
  while (generation_.load() == generation) {
    throw_if_stopped();
    futex(generation_, FUTEX_WAIT, generation, &longest_sleep);
  }
  --sleepers_;
}

}  // namespace llamesh::comm
