#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "core/trace.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// What an event waits for; each device has its own.
struct Event::State {
  virtual ~State() = default;
  virtual bool ready() = 0;
  virtual void wait() = 0;
  /// A calling thread's stream has been blocked for so long by its wait for this.
  virtual void has_blocked(std::chrono::nanoseconds /*time*/) {}
  /// What was done last before it, where that was traced; complete ones only.
  virtual const TraceEvent* after() { return nullptr; }
};

/// A device's in-order execution of work; each device has its own.
class Stream::Queue {
 public:
  virtual ~Queue() = default;
  virtual void run(std::function<void()> work) = 0;
  virtual void wait(const Event& event) = 0;
  virtual std::shared_ptr<Event::State> record() = 0;
  virtual Kind kind() const { return Kind::cpu; }
  /// How long calling threads' streams have been blocked by waits for its events so far.
  virtual std::chrono::nanoseconds blocked() const { return {}; }

 protected:
  /// For queues, which know the type of their own events.
  static Event::State* state_of(const Event& event) { return event.state_.get(); }
};

/// A queue of the CPU: a worker thread.
std::unique_ptr<Stream::Queue> make_worker();

}  // namespace llamesh::device
