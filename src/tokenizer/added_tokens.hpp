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

/// Finds added tokens in text: the leftmost, and of those that begin there the longest.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
  };
  /// The first match that begins at or after `from`, with the white space that it includes (none
  /// before `from`).
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  const AddedToken* token_at(std::string_view text) const;

  std::unordered_map<std::string, AddedToken> tokens_;
  /// First byte -> the lengths of the tokens that begin with it, longest first.
  std::array<std::vector<std::size_t>, 256> lengths_;
};

}  // namespace llamesh::tokenizer
