#include "device/stream.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace llamesh::device {

struct Event::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool happened = false;
  std::exception_ptr error;
};

bool Event::ready() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->happened;
}

void Event::wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->happened; });
  if (state_->error) std::rethrow_exception(state_->error);
}

class Stream::Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void enqueue(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({std::move(work), nullptr});
    }
    changed_.notify_one();
  }

  std::shared_ptr<Event::State> record() {
    auto state = std::make_shared<Event::State>();
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({nullptr, state});
    }
    changed_.notify_one();
    return state;
  }

 private:
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Event::State> event;  // set instead of work: tell that we came here
  };

  void loop() {
    std::exception_ptr error;
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      if (item.event) {
        const std::lock_guard lock(item.event->mutex);
        item.event->happened = true;
        item.event->error = error;
        item.event->changed.notify_all();
      } else if (!error) {
        try {
          item.work();
        } catch (...) {
          error = std::current_exception();
        }
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

Stream::Stream() = default;
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;

Stream Stream::calling_thread() {
  return {};
}

Stream Stream::worker() {
  Stream stream;
  stream.worker_ = std::make_unique<Worker>();
  return stream;
}

void Stream::enqueue(std::function<void()> work) {
  worker_->enqueue(std::move(work));
}

void Stream::wait(const Event& event) {
  if (!event.state_) return;
  run([event] { event.wait(); });
}

Event Stream::record() {
  return worker_ ? Event(worker_->record()) : Event();
}

}  // namespace llamesh::device
