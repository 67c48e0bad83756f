#pragma once

#include <cstdint>

#include "tokenizer/pattern.hpp"

namespace llamesh::tokenizer {

/// Treatment of delimiters, as the tokenizers library names it (SplitDelimiterBehavior).
enum class SplitBehavior : std::uint8_t {
  removed,               ///< they are dropped, with the text in them
  isolated,              ///< each is a piece
  merged_with_previous,  ///< each ends the piece before it, unless that is a delimiter
  merged_with_next,      ///< each begins the piece after it, unless that is a delimiter
  contiguous,            ///< adjacent ones are one piece
};

/// Text that delimiters cut into pieces. It alternates between stretches: delimiters, and the text
/// between two of them.
struct Split {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  ///< matches of the pattern are text, and what it does not match delimits

  /// Returns true if a stretch and the next one belong to the same piece.
  bool joins(bool delimiter, bool next_delimiter) const {
    switch (behavior) {
      case SplitBehavior::merged_with_previous:
        return !delimiter && next_delimiter;
      case SplitBehavior::merged_with_next:
        return delimiter && !next_delimiter;
      case SplitBehavior::contiguous:
        return delimiter == next_delimiter;
      default:
        return false;
    }
  }
  /// Returns true if every match of the pattern is a piece of its own, whatever stands beside it.
  bool keeps_matches() const {
    return behavior == SplitBehavior::isolated || (behavior == SplitBehavior::removed && invert);
  }
};

}  // namespace llamesh::tokenizer
