#include "device/stream.hpp"

#include <chrono>
#include <string>

#include "device/cuda.hpp"
#include "device/device.hpp"
#include "device/queue.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::device {

bool Event::ready() const {
  return !state_ || state_->ready();
}

void Event::wait() const {
  if (state_) state_->wait();
}

Stream::Stream(std::unique_ptr<Queue> queue) : queue_(std::move(queue)) {}
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;

Stream Stream::calling_thread() {
  return Stream(nullptr);
}

Stream Stream::worker() {
  return Stream(make_worker());
}

Stream Stream::communication() {
  switch (device::kind()) {
    case Kind::cuda:
      return Stream(cuda::make_queue(cuda::Priority::high));
    case Kind::simulated:
      return Stream(make_simulated_queue());
    case Kind::cpu:
      break;
  }
  return worker();
}

Kind Stream::kind() const {
  return queue_ ? queue_->kind() : Kind::cpu;
}

double Stream::seconds_blocked() const {
  return queue_ ? std::chrono::duration<double>(queue_->blocked()).count() : 0;
}

void Stream::enqueue(std::function<void()> work) {
  queue_->run(std::move(work));
}

void Stream::wait(const Event& event) {
  if (!event.state_) return;
  if (queue_) return queue_->wait(event);
  if (event.ready()) return event.wait();  // rethrows
  TraceScope scope("wait", "wait");
  const auto start = std::chrono::steady_clock::now();
  event.wait();
  event.state_->has_blocked(std::chrono::steady_clock::now() - start);
  auto* const wait = scope.event();
  const TraceEvent* const after = wait ? event.state_->after() : nullptr;
  if (after == nullptr) return;
  wait->axis = after->lane;
  set_text(wait->subject, std::string(after->name.data()) + ' ' + after->subject.data());
}

Event Stream::record() {
  return queue_ ? Event(queue_->record()) : Event();
}

Stream& compute_stream() {
  if (auto* simulation = Simulation::active()) return simulation->compute_stream();
  // Created once the device is chosen and never destroyed: its events may outlive main().
  static auto& stream =
      *new Stream(kind() == Kind::cuda ? cuda::make_queue(cuda::Priority::normal) : nullptr);
  return stream;
}

Stream& host_stream() {
  if (auto* simulation = Simulation::active()) return simulation->host_stream();
  static auto& stream = *new Stream(Stream::calling_thread());
  return stream;
}

}  // namespace llamesh::device
