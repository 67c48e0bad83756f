#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "data/packing.hpp"
#include "data/token_stream.hpp"

namespace llamesh::data {

/// A document pair in a batch.
struct PairOfBatch {
  std::size_t source = 0;                   ///< the stream, as the batch's reader counts them
  std::int64_t number = 0;                  ///< in the stream
  std::array<std::int64_t, 2> tokens = {};  ///< in the loss, per document
};

/// One micro-batch on one rank: B sequences with T tokens each, or with T tokens of each if ranks
/// divide them.
struct TokenBatch {
  std::vector<std::int32_t> tokens;   ///< (B, T)
  std::vector<std::int32_t> targets;  ///< (B, T): the next token, or ignored_target
  /// (B, T): position where each token's document begins; 0 if it began in an earlier row. A
  /// target is always in its token's document. Empty unless the stream masks documents: then a
  /// token attends to its whole row so far.
  std::vector<std::int32_t> document_starts;
  /// (B, T): each token's document, 2 p or 2 p + 1 of pair p in `pairs`; -1: none. Empty unless the
  /// stream has pairs.
  std::vector<std::int32_t> documents;
  std::vector<PairOfBatch> pairs;  ///< in all rows, in order; whole ones if ranks divide sequences

  /// Allocates B x T.
  TokenBatch(std::int64_t sequences, std::int64_t sequence_length);
  std::int64_t sequence_length;

  /// Fills a row with a sequence from the stream; past the stream's end, with token 0 and ignored
  /// targets.
  void set_row(std::int64_t row, const TokenStream& stream, std::int64_t sequence);
  /// Fills a row with pieces of documents from the stream, at most T + 1 tokens. Only tokens in the
  /// piece that they belong to are targets. The rest is token 0, in a document of its own, and
  /// ignored targets. Rows with pairs are filled in order; `source` is theirs.
  void set_row(std::int64_t row, const TokenStream& stream, std::span<const PackedPiece> pieces,
               std::size_t source = 0);
  /// Fills all rows with two pieces of those in `whole`, which begin at these positions: the first
  /// has T / 2 tokens.
  void set_part(const TokenBatch& whole, const std::array<std::int64_t, 2>& positions);

 private:
  std::span<std::int32_t> row_of_pairs(std::int64_t row, const TokenStream& stream);
  std::int32_t add_document(const TokenStream& stream, const PackedPiece& document,
                            std::span<const std::int32_t> targets_of_it, std::size_t source);
};

}  // namespace llamesh::data
