#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/document_starts.hpp"

/// What a tile of queries sees of the keys before it where rows are packed with documents.
namespace llamesh::ops::cpu {

/// The first key that each query of a tile sees: that at which its document starts. Documents are
/// one after another, so the numbers do not fall.
class FirstKeys {
 public:
  FirstKeys() = default;
  /// `starts` points to those of `count` queries counted as keys are, or is null: all see key 0.
  FirstKeys(const std::int32_t* starts, std::int64_t count) {
    if (!starts) return;
    std::copy_n(starts, count, first_);
    std::fill_n(first_ + count, tile - count, first_[count - 1]);
  }
  /// Where to begin: no query sees a key before this multiple of the vector width.
  std::int64_t begin() const { return first_[0] / vec_width * vec_width; }
  /// How many of `width` queries, in whole vectors from the first one on, may see a key before
  /// `end`.
  std::int64_t queries_before(std::int64_t end, std::int64_t width) const {
    while (width > vec_width && first_[width - vec_width] >= end) width -= vec_width;
    return width;
  }
  /// How many keys from `key` on, `keys` at most, are hidden from some query of [q, q + vec_width).
  std::int64_t hidden(std::int64_t q, std::int64_t key, std::int64_t keys) const {
    return std::min<std::int64_t>(keys, first_[q + vec_width - 1] - key);
  }
  /// Which queries [q, q + vec_width) see a key, as far as their documents go.
  VecInt see(std::int64_t q, std::int64_t key) const {
    VecInt first;
    std::memcpy(&first, first_ + q, sizeof first);
    return first <= static_cast<std::int32_t>(key);
  }

 private:
  alignas(64) std::int32_t first_[tile] = {};
};

/// The end of the tile of keys that holds a key.
constexpr std::int64_t tile_end(std::int64_t key) {
  return (key / tile + 1) * tile;
}

}  // namespace llamesh::ops::cpu
