#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "device/queue.hpp"

namespace llamesh::device {
namespace {

using Nanoseconds = std::atomic<std::chrono::nanoseconds::rep>;

struct Flag final : Event::State {
  explicit Flag(std::shared_ptr<Nanoseconds> blocked) : blocked_in_all(std::move(blocked)) {}

  std::shared_ptr<Nanoseconds> blocked_in_all;  // shared: events may outlive the worker
  std::mutex mutex;
  std::condition_variable changed;
  bool happened = false;
  std::optional<TraceEvent> traced;  // the preceding work
  std::exception_ptr error;

  bool ready() override {
    const std::lock_guard lock(mutex);
    return happened;
  }
  void wait() override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return happened; });
    if (error) std::rethrow_exception(error);
  }
  void has_blocked(std::chrono::nanoseconds time) override { *blocked_in_all += time.count(); }
  const TraceEvent* after() override { return traced ? &*traced : nullptr; }
};

class Worker final : public Stream::Queue {
 public:
  Worker() : thread_([this] { loop(); }) {}
  ~Worker() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run(std::function<void()> work) override { add({std::move(work), nullptr}); }
  void wait(const Event& event) override {
    run([event] { event.wait(); });
  }
  std::shared_ptr<Event::State> record() override {
    auto flag = std::make_shared<Flag>(blocked_);
    add({nullptr, flag});
    return flag;
  }
  std::chrono::nanoseconds blocked() const override { return std::chrono::nanoseconds(*blocked_); }

 private:
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Flag> event;  // a marker without work: set when reached
  };

  void add(Item item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }

  void loop() {
    std::exception_ptr error;
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !items_.empty(); });
        if (items_.empty()) return;
        item = std::move(items_.front());
        items_.pop_front();
      }
      if (item.event) {
        const std::lock_guard lock(item.event->mutex);
        item.event->happened = true;
        item.event->error = error;
        if (Trace::on()) item.event->traced = Trace::newest();
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
  std::deque<Item> items_;
  bool stopping_ = false;
  std::shared_ptr<Nanoseconds> blocked_ = std::make_shared<Nanoseconds>(0);
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace

std::unique_ptr<Stream::Queue> make_worker() {
  return std::make_unique<Worker>();
}

}  // namespace llamesh::device
