#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe.hpp"
#include "tokenizer/pattern.hpp"

namespace llamesh::tokenizer {

/// A token that is found in the text itself, before all else.
struct AddedToken {
  std::int32_t id;
  std::string content;
  bool lstrip;      ///< includes the white space before it
  bool rstrip;      ///< and after it
  bool normalized;  ///< matched after all that are not
};

/// How bytes are written in the vocabulary.
enum class ByteEncoding : std::uint8_t {
  byte_level,     ///< every byte as a printable character
  byte_fallback,  ///< characters, with <0xHH> for what the vocabulary lacks; a space is U+2581
};

/// Where a space is put before the text.
enum class PrefixSpace : std::uint8_t {
  never,
  always,        ///< before the text and after every added token
  unless_space,  ///< the same, but not before a space
  only_first,    ///< before the text, but not before a space
};

/// What a tokenizer.json says, all of it checked.
struct TokenizerFile {
  ByteEncoding byte_encoding = ByteEncoding::byte_level;
  PrefixSpace prefix_space = PrefixSpace::never;
  std::vector<Pattern> patterns;  ///< each splits the pieces that the ones before it left
  std::unordered_map<std::string, std::int32_t> vocabulary;
  std::vector<Merge> merges;
  bool ignore_merges = false;  ///< a word in the vocabulary is taken without merging
  std::vector<AddedToken> added;
  std::vector<std::int32_t> prefix_ids;
  std::vector<std::int32_t> suffix_ids;
};

/// Reads a tokenizer.json; `name` begins all messages. Throws a user error for what is malformed,
/// and by its name for what is not supported.
TokenizerFile parse_tokenizer_json(const std::string& name, std::string_view text);

/// What tokenizer_config.json says.
struct TokenizerConfig {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<bool> add_bos;
};
TokenizerConfig parse_tokenizer_config(const std::string& name, std::string_view text);

/// tokenizer_config.json in the folder of a tokenizer's file; empty text when there is none.
std::string read_adjacent_config(const std::string& tokenizer_path);
/// A whole file of at most 256 MiB. Throws a user error that names it.
std::string read_tokenizer_file(const std::string& path);

}  // namespace llamesh::tokenizer
