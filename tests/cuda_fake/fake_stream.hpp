#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace fake_cuda {

/// A point in a stream.
class Done {
 public:
  void set() {
    {
      const std::lock_guard lock(mutex_);
      set_ = true;
      at_ = std::chrono::steady_clock::now();
    }
    changed_.notify_all();
  }
  /// Returns when it was set.
  std::chrono::steady_clock::time_point at() {
    const std::lock_guard lock(mutex_);
    return at_;
  }
  bool is_set() {
    const std::lock_guard lock(mutex_);
    return set_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
  std::chrono::steady_clock::time_point at_;
};

/// An in-order queue with its own thread.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void put(std::function<void()> work);
  std::shared_ptr<Done> record();
  /// Waits for all work queued on all streams.
  static void synchronize_all();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

void enqueue(cudaStream_t stream, std::function<void()> work);
cudaStream_t default_stream();

/// Counts the host's waits for the GPU from now on (FAKE_GPU_TELLS_WAITS).
void count_waits_from_now();

/// Writes a line to the FAKE_PROFILER file, if there is one.
void tell_profiler(const char* line);

/// Allocates GPU memory, filled with garbage; false if there is not enough.
bool allocate(void** data, std::size_t bytes);
/// Frees immediately, whatever is in flight.
void release(void* data);

}  // namespace fake_cuda
