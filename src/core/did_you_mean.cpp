#include "core/did_you_mean.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>

namespace llamesh {
namespace {

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

std::string_view group_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::vector<std::string> nearest(std::string_view text,
                                 const std::vector<std::string>& candidates) {
  const std::string word = lower_case(text.substr(0, 200));
  const auto last = last_part(word);
  std::vector<std::string> best;
  std::size_t least = std::string::npos;
  for (const std::string& candidate : candidates) {
    const auto key = last_part(candidate);
    // Compare only the key if the group is shared or missing, so that more of the rest may be
    // wrong.
    const bool same_group = group_of(word) == group_of(candidate);
    const bool no_group = last.size() == word.size() && key.size() > 4;
    const bool by_key = same_group || no_group;
    std::size_t distance = edit_distance(by_key ? last : word, by_key ? key : candidate);
    // The right key in the wrong group, or without one, counts as one slip.
    if (last == key) distance = std::min<std::size_t>(distance, 1);
    const auto length = by_key ? last.size() : word.size();
    if (distance > std::max<std::size_t>(2, length / 3) || distance > least) continue;
    if (distance < least) best.clear();
    least = distance;
    best.push_back(candidate);
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t most = 3;  // a longer list does not help
  auto near = nearest(word, candidates);
  if (near.empty() || near.size() > most) return "";
  for (auto& one : near) one = fmt::format("'{}'", one);
  return fmt::format("; did you mean {}?", fmt::join(near, " or "));
}

}  // namespace llamesh
