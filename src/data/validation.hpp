#pragma once

#include <cstdint>

#include "data/loader.hpp"
#include "data/token_batch.hpp"

namespace llamesh::data {

/// The validation data in file order, every prediction of the stream exactly once. Sequence
/// (k * ranks + r) * micro_batch + i is row i of batch k of rank r. The last sequence may be short,
/// and ranks may run out of sequences before others: missing rows have ignored targets, so that
/// every rank has the same number of batches.
class ValidationData {
 public:
  /// `stream` is borrowed; of `partition` the global batch is not used. `limit` batches at most, 0:
  /// no limit. Throws a user error when the stream has fewer than two tokens.
  ValidationData(const TokenStream& stream, const BatchPartition& partition, std::int64_t limit);

  /// Batches of each rank.
  std::int64_t batches() const { return batches_; }
  /// Fills batch `k` of this rank; `batch` must have room for micro_batch x sequence_length.
  void read(std::int64_t k, TokenBatch& batch) const;

 private:
  const TokenStream& stream_;
  BatchPartition partition_;
  std::int64_t batches_;
};

}  // namespace llamesh::data
