#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/document_starts.hpp"

/// Keys that a query tile can see if rows are packed with documents, or with a sliding window.
namespace llamesh::ops::cpu {

/// The first key that each query in a tile sees: its document's start, or that of its window if
/// this is later. The values never decrease.
class FirstKeys {
 public:
  FirstKeys() = default;
  /// For queries [query, query + count), in the same indexing as keys. `starts` points to their
  /// document starts; null: they are 0. window: as in AttentionShape.
  FirstKeys(const std::int32_t* starts, std::int64_t query, std::int64_t count,
            std::int64_t window) {
    if (starts) std::copy_n(starts, count, first_);
    if (window > 0)
      for (std::int64_t i = 0; i < count; ++i)
        first_[i] = std::max(first_[i], static_cast<std::int32_t>(query + i - window + 1));
    std::fill_n(first_ + count, tile - count, first_[count - 1]);
  }
  /// Returns the first key to visit: the largest multiple of the vector width with no visible key
  /// before it.
  std::int64_t begin() const { return first_[0] / vec_width * vec_width; }
  /// Returns how many of the first `width` queries, in whole vectors, may see a key before `end`.
  std::int64_t queries_before(std::int64_t end, std::int64_t width) const {
    while (width > vec_width && first_[width - vec_width] >= end) width -= vec_width;
    return width;
  }
  /// Returns how many keys starting at `key`, at most `keys`, are hidden from some query in
  /// [q, q + vec_width).
  std::int64_t hidden(std::int64_t q, std::int64_t key, std::int64_t keys) const {
    return std::min<std::int64_t>(keys, first_[q + vec_width - 1] - key);
  }
  /// Returns a mask over queries [q, q + vec_width): whether their documents include `key`.
  VecInt see(std::int64_t q, std::int64_t key) const {
    VecInt first;
    std::memcpy(&first, first_ + q, sizeof first);
    return first <= static_cast<std::int32_t>(key);
  }

 private:
  alignas(64) std::int32_t first_[tile] = {};
};

/// Returns the end of the tile that contains `key`.
constexpr std::int64_t tile_end(std::int64_t key) {
  return (key / tile + 1) * tile;
}

}  // namespace llamesh::ops::cpu
