#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace llamesh::tokenizer {

/// Pool of objects, each used by one thread at a time and then passed on, so that caches stay warm.
template <class T>
class ObjectPool {
 public:
  /// Returns an idle object, or a new one from `make`. The returned pointer releases it.
  template <class Make>
  auto acquire(const Make& make) {
    std::unique_lock lock(mutex_);
    std::unique_ptr<T> object;
    if (!idle_.empty()) {
      object = std::move(idle_.back());
      idle_.pop_back();
    }
    lock.unlock();
    if (!object) object = make();
    return std::unique_ptr<T, Release>(object.release(), Release{this});
  }

 private:
  struct Release {
    ObjectPool* pool;
    void operator()(T* object) const {
      const std::lock_guard lock(pool->mutex_);
      pool->idle_.emplace_back(object);
    }
  };
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;
};

}  // namespace llamesh::tokenizer
