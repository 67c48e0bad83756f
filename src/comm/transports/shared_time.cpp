#include "comm/transports/shared_time.hpp"

#include <algorithm>

#include "comm/mpi/session.hpp"

namespace llamesh::comm {

template <class Condition>
void SharedTime::wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
  changed_.wait(lock, [&] { return failed_ || condition(); });
  if (failed_) throw PeerFailure(ExitCode::internal_error);
}

void SharedTime::send(const Channel& channel, double time) {
  const std::lock_guard lock(mutex_);
  sent_[channel].push_back(time);
  changed_.notify_all();
}

double SharedTime::arrival(const Channel& channel, std::size_t number) {
  std::unique_lock lock(mutex_);
  const auto& sent = sent_[channel];
  wait(lock, [&] { return number < sent.size(); });
  return sent[number];
}

double SharedTime::meet(double now) {
  std::unique_lock lock(mutex_);
  latest_ = std::max(latest_, now);
  const auto meeting = meetings_;
  if (++met_ == ranks_) {
    agreed_ = latest_;
    met_ = 0;
    ++meetings_;
    changed_.notify_all();
  }
  wait(lock, [&] { return meetings_ > meeting; });
  return agreed_;
}

void SharedTime::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

}  // namespace llamesh::comm
