#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/document_starts.hpp"

/// Queries in a tile, and the keys that they can see: up to their own positions, and with packed
/// documents or a sliding window only the last ones.
namespace llamesh::ops::cpu {

/// Queries that a tile holds: neighbors, in lanes [lead, lead + count). Lane i has position
/// first + i. As in key tiles, `first` is a multiple of `tile`; so only one pair of tiles is on the
/// diagonal, and a run of positions may begin within its first tile.
struct QueryBlock {
  std::int64_t first, lead, count;
  std::int64_t row;  ///< index of the first query among those of its sequence

  /// Returns the lanes in use, in whole vectors.
  std::int64_t width() const { return round_up(lead + count, vec_width); }
};

/// Divides a row of queries into blocks, in order of positions.
class QueryBlocks {
 public:
  explicit QueryBlocks(const RowPositions& positions)
      : first_{0, positions.adjoin() ? positions.tokens : positions.tokens / 2, positions.first},
        second_{first_.count, positions.tokens - first_.count, positions.second} {}
  std::int64_t size() const { return first_.blocks() + second_.blocks(); }
  QueryBlock operator[](std::int64_t i) const {
    return i < first_.blocks() ? first_[i] : second_[i - first_.blocks()];
  }

 private:
  /// Neighbors, with positions from `position` on.
  struct Run {
    std::int64_t row, count, position;
    std::int64_t blocks() const {
      return count == 0 ? 0 : (position + count - 1) / tile - position / tile + 1;
    }
    QueryBlock operator[](std::int64_t i) const {
      const auto first = (position / tile + i) * tile;
      const auto begin = std::max(first, position);
      return {first, begin - first, std::min(first + tile, position + count) - begin,
              row + begin - position};
    }
  };
  Run first_, second_;
};

/// The first key that each query in a tile sees: its document's start, or that of its window if
/// this is later. The values never decrease.
class FirstKeys {
 public:
  FirstKeys() = default;
  /// `starts` points to the document starts of the block's queries; null: they are 0. window: as in
  /// AttentionShape.
  FirstKeys(const std::int32_t* starts, const QueryBlock& block, std::int64_t window) {
    const auto end = block.lead + block.count;
    if (starts) std::copy_n(starts, block.count, first_ + block.lead);
    if (window > 0)
      for (auto i = block.lead; i < end; ++i)
        first_[i] = std::max(first_[i], static_cast<std::int32_t>(block.first + i - window + 1));
    std::fill_n(first_, block.lead,
                std::min(first_[block.lead], static_cast<std::int32_t>(block.first)));
    std::fill_n(first_ + end, tile - end, first_[end - 1]);
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

/// to (block.width(), padded) = factor * the block's rows of `from` in their lanes, zero elsewhere.
template <class T>
void load_queries(float* to, const QueryBlock& block, std::int64_t padded, Rows<const T> from,
                  std::int64_t head_dim, float factor = 1.0F) {
  std::fill_n(to, block.lead * padded, 0.0F);
  load_tile(to + block.lead * padded, block.width() - block.lead, padded, from, block.count,
            head_dim, factor);
}

}  // namespace llamesh::ops::cpu
