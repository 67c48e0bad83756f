#include "core/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace llamesh {

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 3.6e8));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::optional<std::int64_t> parse_byte_size(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 10> units{{{"", 1},
                                                                       {"B", 1},
                                                                       {"KB", 1e3},
                                                                       {"MB", 1e6},
                                                                       {"GB", 1e9},
                                                                       {"TB", 1e12},
                                                                       {"KiB", 0x1p10},
                                                                       {"MiB", 0x1p20},
                                                                       {"GiB", 0x1p30},
                                                                       {"TiB", 0x1p40}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : units) {
    const double bytes = number * factor;
    if (unit == name && bytes >= 0 && bytes < 0x1p63 && bytes == std::trunc(bytes))
      return static_cast<std::int64_t>(bytes);
  }
  return std::nullopt;
}

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

std::string duration_text(double seconds) {
  if (!(seconds < 1e12)) return "–";
  const auto whole = static_cast<std::int64_t>(std::round(seconds));
  if (whole < 60) return fmt::format("{:.1f} s", seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return "–";
  if (bytes >= 0x1p30) return fmt::format("{:.2f} GiB", bytes / 0x1p30);
  if (bytes >= 0x1p20) return fmt::format("{:.1f} MiB", bytes / 0x1p20);
  if (bytes >= 0x1p10) return fmt::format("{:.1f} KiB", bytes / 0x1p10);
  return fmt::format("{:.0f} B", bytes);
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string parameters_text(std::int64_t count) {
  auto number = static_cast<double>(count);
  if (number >= 1e9) return fmt::format("{:.2f} B", number / 1e9);
  const char* suffix = number >= 999'500 ? " M" : number >= 999.5 ? " k" : "";
  number /= number >= 999'500 ? 1e6 : number >= 999.5 ? 1e3 : 1;
  const int decimals = number >= 99.95 || number == std::floor(number) ? 0
                       : number >= 9.995                               ? 1
                                                                       : 2;
  return fmt::format("{:.{}f}{}", number, decimals, suffix);
}

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
  constexpr std::size_t most = 5;  // a longer list does not help
  auto near = nearest(word, candidates);
  if (near.empty() || near.size() > most) return "";
  for (auto& one : near) one = fmt::format("'{}'", one);
  return fmt::format("; did you mean {}?", fmt::join(near, " or "));
}

namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-./:@%+=,").find(c) != std::string_view::npos;
}

}  // namespace

std::string shell_word(std::string_view word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + '\'';
}

namespace {

constexpr std::size_t longest_excerpt = 120;

unsigned char byte_or_zero(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

/// Bytes of the control character that begins at `i`; 0: none does. Marks that change the text
/// direction and line separators count as control characters.
std::size_t control_bytes(std::string_view text, std::size_t i) {
  const auto first = byte_or_zero(text, i), second = byte_or_zero(text, i + 1),
             third = byte_or_zero(text, i + 2);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && second >= 0x80 && second < 0xa0) return 2;
  if (first == 0xd8 && second == 0x9c) return 2;  // U+061C
  const bool at_2000 = third == 0x8e || third == 0x8f || (third >= 0xa8 && third <= 0xae);
  const bool at_2040 = third >= 0xa6 && third <= 0xa9;
  return first == 0xe2 && ((second == 0x80 && at_2000) || (second == 0x81 && at_2040)) ? 3 : 0;
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    auto escaped = control_bytes(text, i);
    if (escaped == 0) shown += text[i++];
    for (; escaped > 0; --escaped)
      fmt::format_to(std::back_inserter(shown), "\\x{:02x}", byte_or_zero(text, i++));
  }
  return shown;
}

std::string excerpt(std::string_view text) {
  if (text.size() <= longest_excerpt) return printable(text);
  auto end = longest_excerpt;
  while (end > longest_excerpt - 3 && continues_character(text[end])) --end;
  return printable(text.substr(0, end)) + "...";
}

std::string with_short_words(std::string_view text) {
  constexpr std::size_t longest_word = 1000, tail = 20;
  std::string shortened;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(' ', begin), text.size());
    const auto word = text.substr(begin, end - begin);
    if (word.size() > longest_word) {
      auto last = word.size() - tail;
      while (last < word.size() && continues_character(word[last])) ++last;
      shortened.append(excerpt(word)).append(word.substr(last));
    } else {
      shortened += word;
    }
    if (end < text.size()) shortened += ' ';
    begin = end + 1;
  }
  return shortened;
}

}  // namespace llamesh
