#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh {

/// How many characters have to be put in, left out or replaced to make one of the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidates nearest to `word` by edit distance, without regard to case; empty when none is
/// near. One with the same last part (lr or train.lr, optimizer.lr) counts as near.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);
/// "; did you mean 'optimizer.lr'?", to end a message with, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace llamesh
