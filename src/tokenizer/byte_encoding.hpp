#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace llamesh::tokenizer {

/// The token of one byte: GPT-2's printable character for it, or <0xHH>.
std::string token_of_byte(ByteEncoding encoding, std::uint8_t byte);

/// The bytes of a token of the vocabulary.
std::string bytes_of_token(ByteEncoding encoding, const std::string& token);

/// The table of all ids of a tokenizer.json, and its special ids. A BOS or EOS that is named but
/// unknown is a user error.
Vocabulary make_vocabulary(const std::string& name, const TokenizerFile& file,
                           const TokenizerConfig& config);

/// Whether `text` begins with a character that is plainly visible: neither white space nor control
/// nor anything that joins to the character before it. False for many that are; `text` is not
/// empty.
bool begins_visibly(std::string_view text);

}  // namespace llamesh::tokenizer
