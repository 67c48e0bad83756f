#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llamesh::tokenizer {

/// Two adjacent tokens that merge into one.
struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

/// Byte-pair encoding merges as in Sennrich, Haddow and Birch ("Neural machine translation of rare
/// words with subword units", ACL 2016): repeatedly merges the adjacent pair with the lowest rank,
/// the leftmost first, until none is left.
class BytePairEncoding {
 public:
  /// Takes `merges` in rank order. If a pair is listed twice, the later entry counts.
  explicit BytePairEncoding(std::span<const Merge> merges);

  /// Merges `symbols` in place. O(n^2) time for short words, O(n log n) for long ones. Thread-safe.
  void apply(std::vector<std::int32_t>& symbols) const;

 private:
  struct Slot {
    std::uint64_t pair;
    std::uint32_t rank;
    std::int32_t result;
  };
  const Slot* find(std::int32_t left, std::int32_t right) const;
  void apply_short(std::vector<std::int32_t>& symbols) const;
  void apply_long(std::vector<std::int32_t>& symbols) const;

  std::vector<Slot> slots_;  ///< open addressing; the size is a power of two
};

}  // namespace llamesh::tokenizer
