#include "ops/cpu/document_starts.hpp"

namespace llamesh::ops::cpu {

DocumentStarts::DocumentStarts(const Tensor& starts, std::int64_t tokens, std::int64_t sequence) {
  if (!starts) return;
  expects(starts.numel() == tokens && tokens % sequence == 0,
          "{} starts of documents for {} tokens in rows of {}", starts.numel(), tokens, sequence);
  first_ = starts.span<std::int32_t>().data();
  for (std::int64_t row = 0; row < tokens; row += sequence) {
    const auto* start = first_ + row;
    for (std::int64_t i = 0; i < sequence; ++i)
      expects(start[i] == i || (i > 0 && start[i] == start[i - 1]),
              "token {} of row {}: its document cannot start at {}", i, row / sequence, start[i]);
  }
}

}  // namespace llamesh::ops::cpu
