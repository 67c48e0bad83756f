#include "checkpoint/format/segment_reader.hpp"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/philox.hpp"
#include "core/process.hpp"

namespace llamesh::checkpoint {
namespace {

/// Elements read and hashed inline at a time: a piece fits in a core's L2 cache.
constexpr std::int64_t piece_numel = std::int64_t{1} << 16U;

/// Smallest segment hashed on the other thread; for a smaller one the wake-up takes longer.
constexpr std::int64_t worth_waking_for = std::int64_t{1} << 17U;

void compare(const DatasetEntry& entry, const Segment& s, std::uint64_t hash) {
  if (hash != s.hash)
    fail(ExitCode::io_failure, "{} is damaged in elements {} to {}", entry.path, s.begin,
         s.begin + s.count);
}

}  // namespace

Hashing best_hashing(const comm::Communicator& world) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = sched_getaffinity(0, sizeof(cores), &cores) == 0;
  const std::string_view bytes(reinterpret_cast<const char*>(&cores), sizeof(cores));
  const auto mine = static_cast<std::int64_t>(name_hash(this_process().host + std::string(bytes)));
  const auto sharers = std::ranges::count(world.all_gather(mine), mine);
  return known && CPU_COUNT(&cores) >= 2 * sharers ? Hashing::asynchronous : Hashing::synchronous;
}

void check_segment(const DatasetEntry& entry, const Segment& segment,
                   std::span<const float> values) {
  compare(entry, segment, hash_of(values.data(), values.size_bytes()));
}

/// The hashing thread and its queue of segments.
class SegmentReader::Checker {
 public:
  Checker() : thread_([this] { work(); }) {}
  ~Checker() { stop(); }
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  void add(const DatasetEntry& entry, const Segment& segment, std::span<const float> values) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({&entry, segment, values});
    }
    wake_.notify_one();
  }
  void finish() {
    stop();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  struct Job {
    const DatasetEntry* entry;
    Segment segment;
    std::span<const float> values;
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      no_more_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return no_more_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Job job = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        if (!error_) check_segment(*job.entry, job.segment, job.values);
      } catch (...) {
        error_ = std::current_exception();
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> waiting_;
  bool no_more_ = false;
  std::exception_ptr error_;  // set by the thread, read after it ends
  std::thread thread_;
};

SegmentReader::SegmentReader(const std::filesystem::path& state_file, Hashing hashing)
    : file_(Descriptor::to_read(state_file, ExitCode::io_failure)),
      checker_(hashing == Hashing::asynchronous ? std::make_unique<Checker>() : nullptr) {}

SegmentReader::~SegmentReader() = default;

void SegmentReader::read_range(const BoxRange& range, const DatasetEntry& entry, float* values) {
  for_each_run(entry.shape, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
    file_.read(entry.offset + 4 * begin, values + at, 4 * count);
  });
}

void SegmentReader::read(const DatasetEntry& entry, const Segment& segment,
                         std::span<float> values) {
  expects(std::ssize(values) == segment.count, "{} values for a segment of {}", values.size(),
          segment.count);
  RunningHash hash;
  const auto range = entry.range(segment);
  for (std::int64_t at = 0; at < segment.count; at += piece_numel) {
    const auto count = std::min(piece_numel, segment.count - at);
    read_range({range.box, range.begin + at, count}, entry, values.data() + at);
    hash.add(values.data() + at, static_cast<std::size_t>(4 * count));
  }
  compare(entry, segment, hash.value());
}

void SegmentReader::read_ahead(const DatasetEntry& entry, const Segment& segment,
                               std::span<float> values) {
  if (checker_ == nullptr || segment.count < worth_waking_for) return read(entry, segment, values);
  expects(std::ssize(values) == segment.count, "{} values for a segment of {}", values.size(),
          segment.count);
  read_range(entry.range(segment), entry, values.data());
  checker_->add(entry, segment, values);
}

void SegmentReader::finish() {
  if (checker_ != nullptr) checker_->finish();
}

}  // namespace llamesh::checkpoint
