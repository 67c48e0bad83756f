#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llamesh::tokenizer {

/// Length of the character at the start of `text` (1 to 4), or 0 where it is no valid UTF-8 (RFC
/// 3629: nothing overlong, no surrogates, nothing above U+10FFFF). `text` is not empty.
std::size_t utf8_length(std::string_view text);

/// Bytes of the longest valid prefix.
std::size_t valid_utf8_prefix(std::string_view text);

/// The code point of a valid character.
std::uint32_t code_point(std::string_view character);
/// The UTF-8 of a code point below 0x110000.
std::string to_utf8(std::uint32_t code);

/// Bytes at the end of `text` that begin a character which more bytes could complete.
std::size_t unfinished_utf8(std::string_view text);

/// Replaces each maximal sequence of bytes that begins a character but does not complete it, and
/// each other byte that belongs to none, by one U+FFFD: Unicode's practice for maximal subparts
/// (section 3.9, U+FFFD Substitution), as Python's errors="replace" follows it.
std::string replace_invalid_utf8(std::string_view text);

/// Whether a code point has Unicode's property White_Space.
bool is_white_space(std::uint32_t code);

}  // namespace llamesh::tokenizer
