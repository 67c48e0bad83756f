#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llamesh {

/// Returns the length (1 to 4) of the character at the start of `text`, or 0 if it is not valid
/// UTF-8 (RFC 3629: nothing overlong, no surrogates, nothing above U+10FFFF). `text` must not be
/// empty.
std::size_t utf8_length(std::string_view text);

/// Returns the length in bytes of the longest valid prefix.
std::size_t valid_utf8_prefix(std::string_view text);

/// Returns the code point of a valid character.
std::uint32_t code_point(std::string_view character);
/// Returns a code point below 0x110000 as UTF-8.
std::string to_utf8(std::uint32_t code);

/// Returns the number of bytes at the end of `text` that begin a character which more bytes could
/// complete.
std::size_t unfinished_utf8(std::string_view text);

/// Replaces each maximal byte sequence that begins a character but does not complete it, and every
/// other byte that belongs to no character, with one U+FFFD. This is Unicode's practice for maximal
/// subparts (section 3.9, U+FFFD Substitution), as in Python's errors="replace".
std::string replace_invalid_utf8(std::string_view text);

/// Returns true if every character is below U+0300, and so valid UTF-8 is in Unicode's
/// normalization form C. May return false for other text that is, too.
bool is_surely_nfc(std::string_view text);
/// Returns valid UTF-8 in normalization form C.
std::string to_nfc(std::string_view text);

/// Returns true if a code point has the Unicode property White_Space.
bool is_white_space(std::uint32_t code);

}  // namespace llamesh
