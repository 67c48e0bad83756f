#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace llamesh::device {

/// A point in a stream's work that others can wait for. A default one has happened already.
/// Copies stand for the same point.
class Event {
 public:
  Event() = default;
  bool ready() const;
  /// Blocks the calling thread (sleeping, not spinning) until the work before the event is done;
  /// rethrows the error if that work failed.
  void wait() const;

 private:
  friend class Stream;
  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Work done in the order in which it was put in. What a CUDA stream is to the GPU's engine, an
/// in-order worker thread is to the CPU's: communication runs there beside the computation. The
/// compute stream of the CPU is the calling thread itself: its work is done when run() returns.
///
/// When a piece of work throws, the work after it is skipped and every later event carries the
/// error to whoever waits for it.
class Stream {
 public:
  /// The stream of the calling thread: everything happens at once.
  static Stream calling_thread();
  /// A stream with a worker thread of its own.
  static Stream worker();

  ~Stream();  ///< Waits for the work that is in it.
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Puts `work` behind what is in the stream.
  template <class Work>
  void run(Work&& work) {
    if (worker_)
      enqueue(std::forward<Work>(work));
    else
      work();
  }
  /// Work put in after this starts only when `event` has happened.
  void wait(const Event& event);
  /// Happens when all that was put in so far is done.
  Event record();

 private:
  class Worker;
  Stream();
  void enqueue(std::function<void()> work);
  std::unique_ptr<Worker> worker_;  // null: the calling thread
};

}  // namespace llamesh::device
