#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace llamesh::device {

/// A point in a stream's work that others can wait for. A default one has happened already.
/// Copies are of the same point.
class Event {
 public:
  Event() = default;
  bool ready() const;
  /// Blocks the calling thread (sleeping, not spinning) until the work before the event is done;
  /// rethrows the error if that work failed.
  void wait() const;

  struct State;  ///< what a device waits for (device/queue.hpp)

 private:
  friend class Stream;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Work done in the order in which it was put in. What a CUDA stream is to the GPU's engine, an
/// in-order worker thread is to the CPU's: communication runs there beside the computation. The
/// compute stream of the CPU is the calling thread itself: its work is done when run() returns.
///
/// On the CPU run() takes any work. When a piece of it throws, the work after it is skipped and
/// every later event carries the error to whoever waits for it. On a GPU run() calls its work at
/// once, and the work puts kernels and copies into the CUDA stream.
class Stream {
 public:
  /// The stream of the calling thread: everything happens at once, on the CPU.
  static Stream calling_thread();
  /// A stream of the CPU with a worker thread of its own.
  static Stream worker();
  /// A stream for communication beside the computation on this process's device: a worker thread,
  /// or a CUDA stream whose kernels go first.
  static Stream communication();

  ~Stream();  ///< Waits for the work that is in it.
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Puts `work` behind what is in the stream.
  template <class Work>
  void run(Work&& work) {
    if (queue_)
      enqueue(std::forward<Work>(work));
    else
      work();
  }
  /// Work put in after this starts only when `event` has happened.
  void wait(const Event& event);
  /// Happens when all that was put in so far is done.
  Event record();
  /// Whether its work is done by the GPU.
  bool on_gpu() const;

  class Queue;  ///< what a device does with work (device/queue.hpp)
  explicit Stream(std::unique_ptr<Queue> queue);
  /// Null for the calling thread.
  Queue* queue() const { return queue_.get(); }

 private:
  void enqueue(std::function<void()> work);
  std::unique_ptr<Queue> queue_;
};

/// The stream in which this process computes: the calling thread, or the one CUDA stream that all
/// kernels of the model and the optimizer share. One per process.
Stream& compute_stream();

}  // namespace llamesh::device
