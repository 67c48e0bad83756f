#include "data/loader.hpp"

#include "core/error.hpp"

namespace llamesh::data {
namespace {

/// One batch in use and three ahead.
constexpr std::int64_t ring_size = 4;

}  // namespace

Loader::Loader(const TrainingData& data, const BatchPartition& partition, std::uint64_t seed,
               std::int64_t first_step)
    : data_(data),
      partition_(partition),
      sampler_(data.sampler(seed)),
      first_(first_step * partition.micro_batches()) {
  expects(data.sequence_length() == partition.sequence_length, "sequences of {}, divided as {}",
          data.sequence_length(), partition.sequence_length);
  expects(partition.global_batch > 0 &&
              partition.global_batch % (partition.ranks * partition.micro_batch) == 0,
          "a global batch of {} does not divide by {} ranks x {} sequences", partition.global_batch,
          partition.ranks, partition.micro_batch);
  expects(partition.rank >= 0 && partition.rank < partition.ranks, "data rank {} of {}",
          partition.rank, partition.ranks);
  ring_.assign(ring_size, TokenBatch(partition.micro_batch, partition.sequence_length));
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

const TokenBatch& Loader::next() {
  std::unique_lock lock(mutex_);
  ++taken_;
  changed_.notify_all();  // the batch before is free now
  changed_.wait(lock, [this] { return filled_ >= taken_ || error_; });
  if (filled_ < taken_) {
    --taken_;  // the next call throws the same error
    std::rethrow_exception(error_);
  }
  return ring_[static_cast<std::size_t>((taken_ - 1) % ring_size)];
}

void Loader::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    // The slot in use, for batch taken_ - 1, must not be overwritten.
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

void Loader::fill(TokenBatch& batch, std::int64_t number) const {
  const std::int64_t step = number / partition_.micro_batches();
  const std::int64_t micro = number % partition_.micro_batches();
  const std::int64_t position = step * partition_.global_batch + partition_.first_sequence(micro);
  for (std::int64_t row = 0; row < partition_.micro_batch; ++row)
    data_.read(sampler_.sequence_at(position + row), batch, row);
}

}  // namespace llamesh::data
