#pragma once

#include <cstdint>
#include <optional>

#include "data/loader.hpp"
#include "data/packing.hpp"
#include "data/token_batch.hpp"

namespace llamesh::data {

/// Validation data in file order, with every prediction in its sequences exactly once, or with
/// every pair, packed as for training. Sequence (k
/// * ranks + r) * micro_batch + i is row i in batch k on rank r. The last sequence may be short,
/// and some ranks may run out early: missing rows have ignored targets, so that every rank has the
/// same number of batches.
class ValidationData {
 public:
  /// Borrows `stream`; ignores the partition's global batch. Reads at most `limit` sequences over
  /// all ranks; 0: no limit. Throws a user error if the stream has fewer than two tokens.
  ValidationData(const TokenStream& stream, const BatchPartition& partition, std::int64_t limit);

  /// Returns the sequences over all ranks.
  std::int64_t sequences() const { return sequences_; }
  /// Returns true if the limit leaves nothing out.
  bool is_whole() const { return is_whole_; }
  /// Returns the batches per rank.
  std::int64_t batches() const { return batches_; }
  /// Fills this rank's batch `k`; `batch` must have room for micro_batch x sequence_length.
  void read(std::int64_t k, TokenBatch& batch) const;
  /// Throws a user error if no target in any rank's batches counts in the loss. Reads loss masks up
  /// to the first one.
  void check_targets() const;

 private:
  const TokenStream& stream_;
  BatchPartition partition_;
  std::optional<PackedSequences> packed_;  ///< of pairs
  std::int64_t sequences_;
  bool is_whole_ = true;
  std::int64_t batches_;
};

}  // namespace llamesh::data
