#pragma once

#include <string>
#include <string_view>

namespace llamesh {

/// The text with its control characters as `\x1b`, so that a terminal shows what a file or a path
/// holds and obeys none of it: ASCII's, DEL, and U+0080 to U+009F in UTF-8.
std::string printable(std::string_view text);

/// What a message quotes of a file or of the command line: printable(), and of a longer text its
/// first 120 bytes and "...", without a character that is cut in two.
std::string excerpt(std::string_view text);

}  // namespace llamesh
