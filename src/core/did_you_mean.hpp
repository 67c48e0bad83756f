#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh {

/// Returns the Levenshtein distance: the fewest insertions, deletions and replacements.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidates closest to `word` by edit distance, ignoring case; empty if none is
/// close. A candidate with the same last part (lr or train.lr, optimizer.lr) counts as close.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);
/// Returns a message suffix such as "; did you mean 'optimizer.lr'?", or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace llamesh
