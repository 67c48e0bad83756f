#pragma once

#include <cstdint>
#include <vector>

#include "data/token_stream.hpp"

namespace llamesh::data {

/// The target of a position that does not count in the loss.
inline constexpr std::int32_t ignored_target = -1;

/// One micro-batch of one rank. B sequences, T tokens each.
struct Batch {
  std::vector<std::int32_t> tokens;   ///< (B, T)
  std::vector<std::int32_t> targets;  ///< (B, T): the token that follows, or ignored_target

  /// A batch of room for B x T.
  Batch(std::int64_t sequences, std::int64_t sequence_length);
  std::int64_t sequence_length;

  /// Makes row `row` sequence `sequence` of the stream. What lies behind the stream's end is token
  /// 0 with ignored targets.
  void set_row(std::int64_t row, const TokenStream& stream, std::int64_t sequence);
};

}  // namespace llamesh::data
