#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh {

/// Reads a size in bytes: a number, also with a fraction, and B, KB, MB, GB, TB (powers of 1000, as
/// Hugging Face reads them) or KiB, MiB, GiB, TiB (powers of 1024), or no unit. Returns nothing for
/// any other text, and for sizes that are not a whole number of bytes or do not fit into 63 bits.
std::optional<std::int64_t> parse_byte_size(std::string_view text);

/// Formats a duration in seconds as h:mm:ss, up to 100,000 hours.
std::string clock_text(double seconds);

/// Formats a rough duration: "9.5 s", "2 min 30 s", "3 h 5 min"; "–" if it is not finite.
std::string duration_text(double seconds);
/// Formats "1.50 GiB", "1.5 MiB", "1.5 KiB", "15 B"; "–" if it is not finite.
std::string bytes_text(double bytes);
inline std::string bytes_text(std::int64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}
/// Formats a count: "1 step", "2 steps".
std::string counted(std::int64_t count, std::string_view noun);
/// Formats a number of parameters: "8.03 B", below a billion with three digits: "27.0 k".
std::string parameters_text(std::int64_t count);

/// Returns the Levenshtein distance: the fewest insertions, deletions and replacements.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidates closest to `word` by edit distance, ignoring case; empty if none is
/// close. A candidate with the same last part (lr or train.lr, optimizer.lr) counts as close.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);
/// Returns a message suffix such as "; did you mean 'optimizer.lr'?", or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// Returns the word for a command line in a message: in single quotes if a POSIX shell would not
/// take it as it is.
std::string shell_word(std::string_view word);

/// The text with its control characters as `\x1b`, so that a terminal shows what a file or a path
/// holds and obeys none of it: ASCII's, DEL, and in UTF-8 U+0080 to U+009F and the marks for the
/// direction of text and the ends of lines (U+061C, U+200E, U+200F, U+2028 to U+202E, U+2066 to
/// U+2069).
std::string printable(std::string_view text);

/// Returns a file's or the command line's text as messages quote it: printable(), and at most the
/// first 120 bytes and "...", without cutting a character in two.
std::string excerpt(std::string_view text);

/// Returns the text with words of more than 1000 bytes, longer than any path in use, reduced to
/// their beginning, "..." and their end.
std::string with_short_words(std::string_view text);

}  // namespace llamesh
