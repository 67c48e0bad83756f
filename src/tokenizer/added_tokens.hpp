#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer_json.hpp"

namespace llamesh::tokenizer {

/// Search for added tokens in text: leftmost first, then longest.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
  };
  /// Returns the first match at or after `from`, including the white space that it absorbs (none
  /// before `from`).
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  const AddedToken* token_at(std::string_view text) const;

  std::unordered_map<std::string, AddedToken> tokens_;
  /// First byte -> lengths of tokens that begin with it, longest first.
  std::array<std::vector<std::size_t>, 256> lengths_;
};

}  // namespace llamesh::tokenizer
