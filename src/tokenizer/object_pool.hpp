#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace llamesh::tokenizer {

/// Lends each thread an object of its own and takes it back, so that caches stay warm.
template <class T>
class ObjectPool {
 public:
  /// An idle object, or what `make` returns. The holder gives it back at its end.
  template <class Make>
  auto borrow(const Make& make) {
    std::unique_lock lock(mutex_);
    std::unique_ptr<T> object;
    if (!idle_.empty()) {
      object = std::move(idle_.back());
      idle_.pop_back();
    }
    lock.unlock();
    if (!object) object = make();
    return std::unique_ptr<T, GiveBack>(object.release(), GiveBack{this});
  }

 private:
  struct GiveBack {
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
