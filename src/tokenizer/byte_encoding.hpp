#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace llamesh::tokenizer {

/// Returns the token for one byte: GPT-2's printable character, or <0xHH>.
std::string token_of_byte(ByteEncoding encoding, std::uint8_t byte);

/// Returns the bytes behind a vocabulary token.
std::string bytes_of_token(ByteEncoding encoding, const std::string& token);

/// Builds the table of all ids in a tokenizer.json, and its special ids. Throws a user error if BOS
/// or EOS is named but unknown.
Vocabulary make_vocabulary(const std::string& name, const TokenizerFile& file,
                           const TokenizerConfig& config);

/// Returns true if `text` begins with a plainly visible character: not white space, a control
/// character, or one that joins to the previous character. May return false for other visible ones.
/// `text` must not be empty.
bool begins_visibly(std::string_view text);

}  // namespace llamesh::tokenizer
