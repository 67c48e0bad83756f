#include "tokenizer/tokenizer.hpp"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace llamesh::tokenizer {
namespace {

constexpr std::size_t chunk_bytes = 256 << 10;

struct Task {
  std::string_view text;
  Chunk chunk = Chunk::first;
  bool last = false;  ///< last chunk in its document
  bool done = false;
  std::vector<std::int32_t> ids;
  std::exception_ptr error;
};

class ChunkQueue {
 public:
  ChunkQueue(const Tokenizer& tokenizer, std::span<const std::string_view> documents, int threads)
      : tokenizer_(tokenizer),
        documents_(documents),
        window_(4 * static_cast<std::size_t>(threads)) {
    if (!documents_.empty()) rest_ = documents_.front();
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~ChunkQueue() { stop(); }
  ChunkQueue(const ChunkQueue&) = delete;
  ChunkQueue& operator=(const ChunkQueue&) = delete;

  /// Returns the next task in order, or null at the end.
  std::shared_ptr<Task> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() ? exhausted_ : queue_.front()->done; });
    if (queue_.empty()) return nullptr;
    auto task = queue_.front();
    queue_.pop_front();
    changed_.notify_all();
    return task;
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  /// Splits off the next chunk; null if there is none. Requires the lock.
  std::shared_ptr<Task> cut_next() {
    while (rest_.empty() && document_ + 1 < documents_.size()) {
      rest_ = documents_[++document_];
      chunk_ = Chunk::first;
    }
    if (rest_.empty()) {
      exhausted_ = true;
      return nullptr;
    }
    auto task = std::make_shared<Task>();
    const std::size_t cut = tokenizer_.next_cut(rest_, std::min(chunk_bytes, rest_.size()));
    task->text = rest_.substr(0, cut);
    task->chunk = std::exchange(chunk_, Chunk::continuation);
    rest_.remove_prefix(cut);
    task->last = rest_.empty();
    queue_.push_back(task);
    return task;
  }

  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || exhausted_ || queue_.size() < window_; });
      if (stopped_ || exhausted_) return;
      const auto task = cut_next();
      lock.unlock();
      if (task != nullptr) encode(*task);
      lock.lock();
      if (task != nullptr) task->done = true;
      changed_.notify_all();
    }
  }

  void encode(Task& task) const {
    try {
      if (task.chunk == Chunk::first) task.ids = tokenizer_.prefix_ids();
      tokenizer_.encode_chunk(task.text, task.chunk, task.ids);
      if (task.last)
        for (const std::int32_t id : tokenizer_.suffix_ids()) task.ids.push_back(id);
    } catch (...) {
      task.error = std::current_exception();
    }
  }

  const Tokenizer& tokenizer_;
  std::span<const std::string_view> documents_;
  std::size_t window_;  ///< maximum chunks split off but not yet passed to the sink
  std::mutex mutex_;    ///< guards the members below
  std::condition_variable changed_;
  std::size_t document_ = 0;
  std::string_view rest_;  ///< rest of the document
  Chunk chunk_ = Chunk::first;
  std::deque<std::shared_ptr<Task>> queue_;
  bool exhausted_ = false;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void encode_documents(const Tokenizer& tokenizer, std::span<const std::string_view> documents,
                      int threads, const TokenSink& sink) {
  expects(threads >= 1, "{} threads", threads);
  ChunkQueue chunks(tokenizer, documents, threads);
  while (const auto task = chunks.next()) {
    if (task->error) std::rethrow_exception(task->error);
    sink(task->ids, task->text.size(), task->last ? DocumentEnd::yes : DocumentEnd::no);
  }
}

int available_threads() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  const bool known = ::sched_getaffinity(0, sizeof(cpus), &cpus) == 0;
  return std::max(1,
                  known ? CPU_COUNT(&cpus) : static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace llamesh::tokenizer
