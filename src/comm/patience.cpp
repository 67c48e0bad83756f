#include "comm/patience.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "comm/session.hpp"

namespace llamesh::comm {
namespace {

constexpr int yields_before_sleep = 256;
constexpr std::chrono::microseconds first_sleep{5};
constexpr std::chrono::microseconds longest_sleep{100};

std::atomic<bool> stopped{false};

}  // namespace

void stop_waiting() noexcept {
  stopped.store(true);
}

void throw_if_stopped() {
  if (stopped.load(std::memory_order_relaxed)) throw Failed(ExitCode::internal_error);
}

void Patience::pause() {
  throw_if_stopped();
  if (++pauses_ <= yields_before_sleep) {
    sched_yield();
    return;
  }
  sleep_ = std::clamp(2 * sleep_, first_sleep, longest_sleep);
  std::this_thread::sleep_for(sleep_);
}

void Patience::reset() {
  pauses_ = 0;
  sleep_ = std::chrono::microseconds{0};
}

}  // namespace llamesh::comm
