#pragma once

#include <cstdint>
#include <vector>

#include "data/token_stream.hpp"

namespace llamesh::data {

/// One micro-batch of one rank. B sequences, T tokens each.
struct TokenBatch {
  std::vector<std::int32_t> tokens;   ///< (B, T)
  std::vector<std::int32_t> targets;  ///< (B, T): the token that follows, or ignored_target
  /// (B, T): the index in its row of the first token of a token's document, 0 where the document
  /// began in an earlier row; a target is never in another document than its token. Empty unless
  /// the stream masks documents: then a token attends to all of the row before it.
  std::vector<std::int32_t> document_starts;

  /// Allocates B x T.
  TokenBatch(std::int64_t sequences, std::int64_t sequence_length);
  std::int64_t sequence_length;

  /// Fills row `row` with sequence `sequence` of the stream; past the stream's end with token 0 and
  /// ignored targets.
  void set_row(std::int64_t row, const TokenStream& stream, std::int64_t sequence);
};

}  // namespace llamesh::data
