#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace llamesh::device {

/// What computes. `simulated` stands for one of the others (simulated/simulation.hpp).
enum class Kind : std::uint8_t { cpu, cuda, simulated };

/// A point in a stream's work that can be waited for. A default one is complete already. Copies
/// refer to the same point.
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

/// Work done in the order in which it is enqueued: a CUDA stream on a GPU; on the CPU an in-order
/// worker thread for communication, which overlaps with the computation. The compute stream of the
/// CPU is the calling thread itself: its work is done when run() returns.
///
/// On the CPU run() takes any work. When it throws, the work after it is skipped and every later
/// event rethrows the error in wait(). On a GPU run() calls its work at once, which enqueues
/// kernels and copies into the CUDA stream.
class Stream {
 public:
  /// The stream of the calling thread: everything happens at once, on the CPU.
  static Stream calling_thread();
  /// A CPU stream with its own worker thread.
  static Stream worker();
  /// A stream for communication that overlaps with computation on this process's device: a worker
  /// thread, or a CUDA stream of high priority.
  static Stream communication();

  ~Stream();  ///< Waits for the work that is in it.
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Enqueues `work`.
  template <class Work>
  void run(Work&& work) {
    if (queue_)
      enqueue(std::forward<Work>(work));
    else
      work();
  }
  /// Work enqueued after this starts only when `event` is complete.
  void wait(const Event& event);
  /// Completes when all work enqueued so far is done.
  Event record();
  Kind kind() const;
  /// Seconds so far in which a calling thread's stream has been blocked by waits for its events.
  double seconds_blocked() const;
  /// Whether its work runs on a GPU, or a simulated device: not where the host reads its results.
  bool on_gpu() const { return kind() != Kind::cpu; }

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
/// The stream whose kernels use memory of the host, where the device is another: the calling
/// thread, on the CPU's backend.
Stream& host_stream();

}  // namespace llamesh::device
