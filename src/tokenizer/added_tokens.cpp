#include "tokenizer/added_tokens.hpp"

#include <algorithm>
#include <functional>

#include "core/utf8.hpp"

namespace llamesh::tokenizer {
namespace {

/// Returns the bytes of white space at the start of `text`.
std::size_t leading_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0 || !is_white_space(code_point(text.substr(at, length)))) break;
    at += length;
  }
  return at;
}

/// Returns the bytes of white space at the end of `text`.
std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 &&
           (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U)
      --begin;
    const auto character = text.substr(begin, end - begin);
    if (utf8_length(character) != character.size() || !is_white_space(code_point(character))) break;
    end = begin;
  }
  return text.size() - end;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    tokens_.emplace(token.content, token);
    auto& lengths = lengths_[static_cast<unsigned char>(token.content.front())];
    if (std::ranges::find(lengths, token.content.size()) == lengths.end())
      lengths.push_back(token.content.size());
  }
  for (auto& lengths : lengths_) std::ranges::sort(lengths, std::greater<>());
}

const AddedToken* AddedTokens::token_at(std::string_view text) const {
  for (const std::size_t length : lengths_[static_cast<unsigned char>(text.front())]) {
    if (length > text.size()) continue;
    const auto found = tokens_.find(std::string(text.substr(0, length)));
    if (found != tokens_.end()) return &found->second;
  }
  return nullptr;
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (std::size_t at = from; at < text.size(); ++at) {
    if (lengths_[static_cast<unsigned char>(text[at])].empty()) continue;
    const AddedToken* token = token_at(text.substr(at));
    if (token == nullptr) continue;
    Match match{at, at + token->content.size(), token->id};
    if (token->lstrip) match.begin -= trailing_space(text.substr(from, at - from));
    if (token->rstrip) match.end += leading_space(text.substr(match.end));
    return match;
  }
  return std::nullopt;
}

}  // namespace llamesh::tokenizer
