#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llamesh::tokenizer {

/// Two neighbouring tokens that become one.
struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

/// The merges of a byte-pair encoding, as Sennrich, Haddow and Birch apply them ("Neural machine
/// translation of rare words with subword units", ACL 2016): of all neighbouring pairs the one of
/// lowest rank is merged, the leftmost one first, until none is left.
class BytePairEncoding {
 public:
  /// `merges` in the order of their rank. Of a pair that is listed twice the later one counts.
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
