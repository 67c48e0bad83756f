#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {

/// A token that is matched in the raw text, before anything else.
struct AddedToken {
  std::int32_t id;
  std::string content;
  bool lstrip;      ///< absorbs white space before it
  bool rstrip;      ///< absorbs white space after it
  bool normalized;  ///< matched after all tokens without this flag
  bool special;     ///< a control token, which ordinary text should not contain

  bool operator==(const AddedToken&) const = default;
};

/// Rule for the id of a token that is named beside a tokenizer file.
enum class NamedId : std::uint8_t {
  stated,    ///< the id in `token`, which must be the one that the tokenizer gives it
  assigned,  ///< the tokenizer's own, or the next free one
  known,     ///< that of an added token which is there already
};

/// A token that is named beside a tokenizer file.
struct NamedToken {
  std::string where;  ///< file and key, for messages
  AddedToken token;
  NamedId id;
  bool has_flags = true;  ///< if false, those in tokenizer.json go before these
};

/// Contents of the files beside a tokenizer file.
struct TokenizerConfig {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::map<std::string, std::string> named;  ///< these and the others with a purpose, by their keys
  std::optional<bool> add_bos;
  std::vector<NamedToken> added;    ///< in the order of their stated ids
  std::vector<NamedToken> special;  ///< named for a purpose, or listed as special
};

/// Reads the files as transformers 5 does (PreTrainedTokenizerBase._from_pretrained). If
/// tokenizer_config.json has added_tokens_decoder, the other two files do not count. Otherwise the
/// keys in special_tokens_map.json go before those in tokenizer_config.json. `name` is the
/// tokenizer file's, for messages. Throws a user error for malformed or unsupported contents.
TokenizerConfig parse_tokenizer_config(const std::string& name, const CompanionFiles& files);

/// Reads the files beside a tokenizer file.
CompanionFiles read_companion_files(const std::string& tokenizer_path);
/// Reads a whole file up to 256 MiB. Throws a user error that names it.
std::string read_tokenizer_file(const std::string& path);

}  // namespace llamesh::tokenizer
