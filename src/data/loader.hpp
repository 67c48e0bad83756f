#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/sampler.hpp"
#include "data/token_batch.hpp"
#include "data/training_data.hpp"

namespace llamesh::data {

/// How the sequences of a step are divided among the data ranks. Micro-batch a of data rank r takes
/// the positions step * global_batch + (a * ranks + r) * micro_batch and the micro_batch - 1 that
/// follow.
struct BatchPartition {
  std::int64_t sequence_length = 512;
  std::int64_t micro_batch = 1;  ///< sequences of one batch of one rank
  std::int64_t global_batch =
      1;         ///< sequences of a step over all ranks: a multiple of ranks * micro_batch
  int rank = 0;  ///< among the data ranks
  int ranks = 1;

  std::int64_t micro_batches() const { return global_batch / (ranks * micro_batch); }
};

/// Loads the training data: batch after batch of one rank, from any step on. Its only state is the
/// step, so a resumed run reads exactly what an uninterrupted one would. A background thread fills
/// a few batches ahead; the memory is allocated once.
class Loader {
 public:
  /// Starts reading at the first micro-batch of `first_step`. `data` is borrowed.
  Loader(const TrainingData& data, const BatchPartition& partition, std::uint64_t seed,
         std::int64_t first_step);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch; valid until the next call. Throws the error of reading it, for example a
  /// token id outside the vocabulary.
  const TokenBatch& next();
  /// Sequences in an epoch.
  std::int64_t epoch_length() const { return sampler_.epoch_length(); }

 private:
  void run();
  void fill(TokenBatch& batch, std::int64_t number) const;

  const TrainingData& data_;
  BatchPartition partition_;
  Sampler sampler_;
  std::int64_t first_;            ///< number of the first micro-batch, counted from step 0
  std::vector<TokenBatch> ring_;  ///< batch k is in slot k % size
  std::mutex mutex_;              ///< guards what follows
  std::condition_variable changed_;
  std::int64_t filled_ = 0;  ///< batches made
  std::int64_t taken_ = 0;   ///< batches handed out; the last one is still in use
  bool stop_ = false;
  std::exception_ptr error_;  ///< of batch number filled_
  std::thread thread_;        ///< last, so that it starts when all else is constructed
};

}  // namespace llamesh::data
