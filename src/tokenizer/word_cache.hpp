#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace llamesh::tokenizer {

/// A per-thread cache from words to tokens: 32768 slots with one cache line each; a new word
/// replaces the old one.
class WordCache {
 public:
  WordCache() : slots_(places) {}

  /// Returns the word's ids, or an empty span if it is not cached. Valid until the next put.
  std::span<const std::int32_t> find(std::string_view word) const {
    const Slot& slot = slots_[slot_of(word)];
    if (slot.bytes != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0)
      return {};
    return {slot.ids, slot.count};
  }
  /// Stores a non-empty word unless it or its ids are too long.
  void put(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.empty() || word.size() > longest || ids.size() > max_ids) return;
    Slot& slot = slots_[slot_of(word)];
    slot.bytes = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(slot.word, word.data(), word.size());
    std::memcpy(slot.ids, ids.data(), ids.size_bytes());
  }

  static constexpr std::size_t longest = 22;  ///< maximum bytes in a cached word

 private:
  static constexpr std::size_t places = 1 << 15;
  static constexpr std::size_t max_ids = 10;
  struct alignas(64) Slot {
    std::int32_t ids[max_ids] = {};
    char word[longest] = {};
    std::uint8_t bytes = 0;
    std::uint8_t count = 0;
  };
  /// Returns the slot for a word, mixed in parts of eight bytes.
  static std::size_t slot_of(std::string_view word) {
    std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15U;
    for (std::size_t at = 0; at < word.size(); at += 8) {
      std::uint64_t part = 0;
      const std::size_t count = word.size() - at;
      std::memcpy(&part, word.data() + at, count < 8 ? count : 8);
      hash = (hash ^ part) * 0xD6E8FEB86659FD93U;
      hash ^= hash >> 32;
    }
    return hash % places;
  }

  std::vector<Slot> slots_;
};

}  // namespace llamesh::tokenizer
