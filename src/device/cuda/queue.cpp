#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "device/cuda.hpp"
#include "device/cuda/runtime.hpp"

namespace llamesh::device::cuda {
namespace {

using Nanoseconds = std::atomic<std::chrono::nanoseconds::rep>;

struct QueuedEvent final : Event::State {
  cudaEvent_t event = nullptr;
  std::shared_ptr<Nanoseconds> blocked_in_all;  // total of its queue, which may end first

  explicit QueuedEvent(std::shared_ptr<Nanoseconds> blocked) : blocked_in_all(std::move(blocked)) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreate");
  }
  ~QueuedEvent() override { cudaEventDestroy(event); }
  QueuedEvent(const QueuedEvent&) = delete;
  QueuedEvent& operator=(const QueuedEvent&) = delete;

  /// Any thread.
  bool ready() override {
    attach_thread();
    const auto result = cudaEventQuery(event);
    if (result == cudaErrorNotReady) {
      cudaGetLastError();  // clear it: CUDA records this as an error that a later launch would
                           // report
      return false;
    }
    check(result, "work before an event");
    return true;
  }
  void wait() override {
    if (!ready()) check(cudaEventSynchronize(event), "work before an event");
  }
};

/// A CUDA event with a timestamp.
class TimedEvent {
 public:
  TimedEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "cudaEventCreate"); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  bool happened() const {
    const auto result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) cudaGetLastError();  // as above
    return result == cudaSuccess;
  }
  std::chrono::nanoseconds since(const TimedEvent& begin) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "cudaEventElapsedTime");
    return std::chrono::nanoseconds(std::llround(1e6 * static_cast<double>(milliseconds)));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Meter for a stream's waits for other streams. Records an event before and one after each wait.
/// Once the GPU has passed both, adds the time to the total of the other stream. The host never
/// waits.
class WaitMeter {
 public:
  /// Makes `stream` wait for the event.
  void wait(cudaStream_t stream, const QueuedEvent& event) {
    const std::lock_guard lock(mutex_);
    add_past();
    Wait wait{take(), take(), event.blocked_in_all};
    wait.begin->record(stream);
    check(cudaStreamWaitEvent(stream, event.event), "cudaStreamWaitEvent");
    wait.end->record(stream);
    waits_.push_back(std::move(wait));
  }
  /// Adds the waits that the GPU has passed.
  void update() {
    const std::lock_guard lock(mutex_);
    add_past();
  }

 private:
  using Timed = std::unique_ptr<TimedEvent>;
  struct Wait {
    Timed begin, end;
    std::shared_ptr<Nanoseconds> blocked;
  };

  Timed take() {
    if (free_.empty()) return std::make_unique<TimedEvent>();
    auto event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void add_past() {
    while (!waits_.empty() && waits_.front().end->happened()) {
      auto& [begin, end, blocked] = waits_.front();
      *blocked += end->since(*begin).count();
      free_.push_back(std::move(begin));
      free_.push_back(std::move(end));
      waits_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<Wait> waits_;  // in the order of the stream
  std::vector<Timed> free_;
};

/// Returns the meter for the compute stream, whose waits count.
WaitMeter& wait_meter() {
  static auto& meter = *new WaitMeter;  // never destroyed, like that stream
  return meter;
}

class CudaQueue final : public Stream::Queue {
 public:
  explicit CudaQueue(Priority priority) : computes_(priority == Priority::normal) {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       priority == Priority::high ? greatest : least),
          "cudaStreamCreateWithPriority");
  }
  ~CudaQueue() override {
    cudaStreamSynchronize(stream_);  // wait() reports any failure
    cudaStreamDestroy(stream_);
  }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  Kind kind() const override { return Kind::cuda; }
  cudaStream_t native() const { return stream_; }

  void run(std::function<void()> work) override { work(); }
  void wait(const Event& event) override {
    auto* const queued = dynamic_cast<QueuedEvent*>(state_of(event));
    if (queued == nullptr)
      event.wait();
    else if (computes_ && queued->blocked_in_all != blocked_ && !queued->ready())
      wait_meter().wait(stream_, *queued);
    else
      check(cudaStreamWaitEvent(stream_, queued->event), "cudaStreamWaitEvent");
  }
  std::shared_ptr<Event::State> record() override {
    auto moment = std::make_shared<QueuedEvent>(blocked_);
    check(cudaEventRecord(moment->event, stream_), "cudaEventRecord");
    return moment;
  }
  std::chrono::nanoseconds blocked() const override {
    wait_meter().update();
    return std::chrono::nanoseconds(*blocked_);
  }

 private:
  bool computes_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<Nanoseconds> blocked_ = std::make_shared<Nanoseconds>(0);
};

}  // namespace

std::unique_ptr<Stream::Queue> make_queue(Priority priority) {
  return std::make_unique<CudaQueue>(priority);
}

cudaStream_t native(const Stream& stream) {
  expects(stream.kind() == Kind::cuda, "a stream of the CPU where one of the GPU is needed");
  return static_cast<const CudaQueue*>(stream.queue())->native();
}

}  // namespace llamesh::device::cuda
