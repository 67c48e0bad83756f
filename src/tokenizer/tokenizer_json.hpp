#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe.hpp"
#include "tokenizer/json_object.hpp"
#include "tokenizer/split.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/tokenizer_config.hpp"

namespace llamesh::tokenizer {

/// Spelling of bytes in the vocabulary.
enum class ByteEncoding : std::uint8_t {
  byte_level,     ///< every byte as a printable character
  byte_fallback,  ///< characters, with <0xHH> for those that the vocabulary lacks; a space is
                  ///< U+2581
};

/// Rule for the space added before the text.
enum class PrefixSpace : std::uint8_t {
  never,
  always,        ///< before the text and after every added token
  unless_space,  ///< like always, but not before a space
  only_first,    ///< before the text, but not before a space
};

/// Validated contents of a tokenizer.json.
struct TokenizerFile {
  ByteEncoding byte_encoding = ByteEncoding::byte_level;
  PrefixSpace prefix_space = PrefixSpace::never;
  bool to_nfc = false;        ///< text between added tokens is normalized to NFC
  std::vector<Split> splits;  ///< each splits the pieces left by the previous ones
  std::unordered_map<std::string, std::int32_t> vocabulary;
  std::vector<Merge> merges;
  bool ignore_merges = false;  ///< a word in the vocabulary is taken without merging
  std::vector<AddedToken> added;
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;
};

/// Parses a tokenizer.json; `name` begins all messages. Adds the tokens that `config` names. Throws
/// a user error for malformed contents, and names unsupported features.
TokenizerFile parse_tokenizer_json(const std::string& name, std::string_view text,
                                   const TokenizerConfig& config);

/// Reads normalizer, pre_tokenizer and decoder from a tokenizer.json into byte_encoding,
/// prefix_space and splits.
void read_text_steps(const JsonObject& root, TokenizerFile& file);

/// Reads post_processor into prefix_ids and suffix_ids. Requires the vocabulary.
void read_post_processor(const JsonObject& root, TokenizerFile& file);

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
