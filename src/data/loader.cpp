#include "data/loader.hpp"

#include "core/error.hpp"

namespace llamesh::data {
namespace {

/// One batch in use and three ahead.
constexpr std::int64_t ring_size = 4;

}  // namespace

Loader::Loader(const TrainingData& data, const Dealing& dealing, std::uint64_t seed,
               std::int64_t first_step)
    : data_(data),
      dealing_(dealing),
      sampler_(data.sampler(seed)),
      first_(first_step * dealing.micro_batches()) {
  expects(data.sequence_length() == dealing.sequence_length, "sequences of {}, dealt as {}",
          data.sequence_length(), dealing.sequence_length);
  expects(
      dealing.global_batch > 0 && dealing.global_batch % (dealing.ranks * dealing.micro_batch) == 0,
      "a global batch of {} does not divide by {} ranks x {} sequences", dealing.global_batch,
      dealing.ranks, dealing.micro_batch);
  expects(dealing.rank >= 0 && dealing.rank < dealing.ranks, "data rank {} of {}", dealing.rank,
          dealing.ranks);
  ring_.assign(ring_size, Batch(dealing.micro_batch, dealing.sequence_length));
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

const Batch& Loader::next() {
  std::unique_lock lock(mutex_);
  ++taken_;
  changed_.notify_all();  // the batch before is free now
  changed_.wait(lock, [this] { return filled_ >= taken_ || error_; });
  if (filled_ < taken_) {
    --taken_;  // asking again meets the same error
    std::rethrow_exception(error_);
  }
  return ring_[static_cast<std::size_t>((taken_ - 1) % ring_size)];
}

void Loader::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    // Slot of the batch in use, number taken_ - 1, must not be overwritten.
    changed_.wait(lock,
                  [this] { return stop_ || filled_ - (taken_ > 0 ? taken_ - 1 : 0) < ring_size; });
    if (stop_) return;
    const std::int64_t k = filled_;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(ring_[static_cast<std::size_t>(k % ring_size)], first_ + k);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    if (!error) ++filled_;
    changed_.notify_all();
    if (error) return;
  }
}

void Loader::fill(Batch& batch, std::int64_t number) const {
  const std::int64_t step = number / dealing_.micro_batches();
  const std::int64_t micro = number % dealing_.micro_batches();
  const std::int64_t position = step * dealing_.global_batch +
                                (micro * dealing_.ranks + dealing_.rank) * dealing_.micro_batch;
  for (std::int64_t row = 0; row < dealing_.micro_batch; ++row) {
    const Place place = sampler_.place_of(position + row);
    batch.set_row(row, data_.stream(place.source), place.sequence);
  }
}

}  // namespace llamesh::data
