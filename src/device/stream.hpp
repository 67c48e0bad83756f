#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace llamesh::device {

/// Backend type. `simulated` stands in for one of the others (simulated/simulation.hpp).
enum class Kind : std::uint8_t { cpu, cuda, simulated };

/// A waitable point in a stream's work. A default-constructed event is complete. Copies refer to
/// the same point.
class Event {
 public:
  Event() = default;
  bool ready() const;
  /// Blocks the calling thread (sleeping, not spinning) until the work before the event is done.
  /// Rethrows the error if that work failed.
  void wait() const;

  struct State;  ///< device-specific (device/queue.hpp)

 private:
  friend class Stream;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// In-order work queue: a CUDA stream on a GPU; on the CPU a worker thread for communication that
/// overlaps with computation. The CPU's compute stream is the calling thread itself: its work is
/// done when run() returns.
///
/// On the CPU, run() takes any work. If it throws, later work is skipped and every later event
/// rethrows the error in wait(). On a GPU, run() calls its work immediately, which enqueues kernels
/// and copies into the CUDA stream.
class Stream {
 public:
  /// Returns the calling thread's stream: runs everything immediately, on the CPU.
  static Stream calling_thread();
  /// Returns a CPU stream with its own worker thread.
  static Stream worker();
  /// Returns a communication stream that overlaps with computation on this process's device: a
  /// worker thread, or a high-priority CUDA stream.
  static Stream communication();

  ~Stream();  ///< Waits for queued work.
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
  /// Makes work enqueued after this wait until `event` is complete.
  void wait(const Event& event);
  /// Returns an event that completes when all work enqueued so far is done.
  Event record();
  Kind kind() const;
  /// Returns the seconds for which waits on this stream's events have blocked a calling thread's
  /// stream, or on a GPU the compute stream, up to its current progress.
  double seconds_blocked() const;
  /// Returns true on a GPU or simulated device: the host cannot read results in place.
  bool on_gpu() const { return kind() != Kind::cpu; }

  class Queue;  ///< device-specific (device/queue.hpp)
  explicit Stream(std::unique_ptr<Queue> queue);
  /// Returns null for the calling thread's stream.
  Queue* queue() const { return queue_.get(); }

 private:
  void enqueue(std::function<void()> work);
  std::unique_ptr<Queue> queue_;
};

/// Returns the stream for computation: the calling thread, or the CUDA stream shared by all model
/// and optimizer kernels. One per process.
Stream& compute_stream();
/// Returns the stream for kernels on host memory when the device is a GPU: the calling thread, on
/// the CPU backend.
Stream& host_stream();

}  // namespace llamesh::device
