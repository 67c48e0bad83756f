#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "ops/calls.hpp"

namespace llamesh::ops::cpu {

/// Document starts in packed rows, as defined in ops.hpp: one per token. Empty: one document per
/// row.
class DocumentStarts {
 public:
  /// Borrows `starts`. Throws unless it has B T = `tokens` entries, each equal to the previous one
  /// or to the token's own position; at a run's begin, an earlier position will do.
  DocumentStarts(const Tensor& starts, std::int64_t tokens, const RowPositions& positions) {
    if (!starts) return;
    const auto sequence = positions.tokens;
    expects(starts.numel() == tokens && tokens % sequence == 0,
            "{} starts of documents for {} tokens in rows of {}", starts.numel(), tokens, sequence);
    first_ = starts.span<std::int32_t>().data();
    for (std::int64_t row = 0; row < tokens; row += sequence) {
      const auto* start = first_ + row;
      for (std::int64_t i = 0; i < sequence; ++i) {
        const bool begins_run = i == 0 || positions[i] != positions[i - 1] + 1;
        const bool fits = begins_run ? start[i] >= 0 && start[i] <= positions[i]
                                     : start[i] == start[i - 1] || start[i] == positions[i];
        expects(fits, "token {} of row {}: its document cannot start at {}", i, row / sequence,
                start[i]);
      }
    }
  }

  /// Returns the entries from token m (of B T) on, or null.
  const std::int32_t* from(std::int64_t m) const { return first_ ? first_ + m : nullptr; }

 private:
  const std::int32_t* first_ = nullptr;
};

}  // namespace llamesh::ops::cpu
