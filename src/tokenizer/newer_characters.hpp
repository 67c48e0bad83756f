#pragma once

#include <string>
#include <string_view>

namespace llamesh::tokenizer {

/// Returns true if the text has a character that Unicode 15, 15.1 or 16 added. The tokenizers
/// library's Oniguruma has Unicode 16; PCRE2's tables may be older: Debian 12's are Unicode 14's.
/// `text` must be valid UTF-8.
bool has_newer_characters(std::string_view text);

/// Returns these characters in a general category (Lu, or L for all letters), as written in a
/// PCRE2 class.
std::string newer_characters(std::string_view category);

}  // namespace llamesh::tokenizer
