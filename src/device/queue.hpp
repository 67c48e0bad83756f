#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "core/trace.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// The condition behind an event; each device derives its own.
struct Event::State {
  virtual ~State() = default;
  virtual bool ready() = 0;
  virtual void wait() = 0;
  /// Called when a wait for this event has blocked a calling thread's stream for `time`.
  virtual void has_blocked(std::chrono::nanoseconds /*time*/) {}
  /// Returns the last traced work before this event, or null. Only for complete events.
  virtual const TraceEvent* after() { return nullptr; }
};

/// In-order execution of work; each device derives its own.
class Stream::Queue {
 public:
  virtual ~Queue() = default;
  virtual void run(std::function<void()> work) = 0;
  virtual void wait(const Event& event) = 0;
  virtual std::shared_ptr<Event::State> record() = 0;
  virtual Kind kind() const { return Kind::cpu; }
  /// Returns how long waits on this queue's events have blocked calling threads' streams, or a
  /// GPU's compute stream, so far.
  virtual std::chrono::nanoseconds blocked() const { return {}; }

 protected:
  /// Lets a queue reach its own event type.
  static Event::State* state_of(const Event& event) { return event.state_.get(); }
};

/// Returns a CPU queue: a worker thread.
std::unique_ptr<Stream::Queue> make_worker();

}  // namespace llamesh::device
