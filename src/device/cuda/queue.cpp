#include "core/error.hpp"
#include "device/cuda.hpp"
#include "device/cuda/runtime.hpp"

namespace llamesh::device::cuda {
namespace {

struct QueuedEvent final : Event::State {
  cudaEvent_t event = nullptr;

  QueuedEvent() {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreate");
  }
  ~QueuedEvent() override { cudaEventDestroy(event); }
  QueuedEvent(const QueuedEvent&) = delete;
  QueuedEvent& operator=(const QueuedEvent&) = delete;

  bool ready() override {
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

class CudaQueue final : public Stream::Queue {
 public:
  explicit CudaQueue(Priority priority) {
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
    if (const auto* moment = dynamic_cast<const QueuedEvent*>(state_of(event)))
      check(cudaStreamWaitEvent(stream_, moment->event), "cudaStreamWaitEvent");
    else
      event.wait();
  }
  std::shared_ptr<Event::State> record() override {
    auto moment = std::make_shared<QueuedEvent>();
    check(cudaEventRecord(moment->event, stream_), "cudaEventRecord");
    return moment;
  }

 private:
  cudaStream_t stream_ = nullptr;
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
