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

/// Divides a step's sequences among the data ranks, in parts with `micro_batch` sequences that
/// follow one another. Some neighboring ranks take the first parts, one each, then each its next
/// one, up to its last; then come the next ranks' parts.
struct BatchPartition {
  std::int64_t sequence_length = 512;
  std::int64_t micro_batch = 1;  ///< sequences per micro-batch and rank
  /// Sequences of a step over all ranks: a multiple of ranks * micro_batch.
  std::int64_t global_batch = 1;
  int rank = 0;  ///< among the data ranks
  int ranks = 1;
  int neighbors = 0;  ///< divides `ranks`; 0: all ranks

  std::int64_t micro_batches() const { return global_batch / (ranks * micro_batch); }
  /// Returns the first sequence, counted in the step, of this rank's micro-batch `number`.
  std::int64_t first_sequence(std::int64_t number) const {
    const int together = neighbors == 0 ? ranks : neighbors;
    const auto part = (rank / together * micro_batches() + number) * together + rank % together;
    return part * micro_batch;
  }
};

/// Loader for one rank's training batches, starting at any step. Its only state is the step, so a
/// resumed run reads exactly the same data as an uninterrupted one. A background thread fills a few
/// batches ahead; memory is allocated once.
class Loader {
 public:
  /// Starts reading at the first micro-batch of `first_step`. Borrows `data`.
  Loader(const TrainingData& data, const BatchPartition& partition, std::uint64_t seed,
         std::int64_t first_step);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the next micro-batch, valid until the next call. Throws any error from reading it,
  /// e.g. a token id outside the vocabulary.
  const TokenBatch& next();
  /// Returns the sequences per epoch.
  std::int64_t epoch_length() const { return sampler_.epoch_length(); }

 private:
  void run();
  void fill(TokenBatch& batch, std::int64_t number) const;

  const TrainingData& data_;
  BatchPartition partition_;
  Sampler sampler_;
  std::int64_t first_;            ///< index of the first micro-batch, counted from step 0
  std::vector<TokenBatch> ring_;  ///< batch k is in slot k % size
  std::mutex mutex_;              ///< guards the members below
  std::condition_variable changed_;
  std::int64_t filled_ = 0;  ///< batches filled
  std::int64_t taken_ = 0;   ///< batches handed out; the last one is still in use
  bool stop_ = false;
  std::exception_ptr error_;  ///< from batch number filled_
  std::thread thread_;        ///< last, so that it starts after everything else is constructed
};

}  // namespace llamesh::data
