#include "app/models/prompt_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "app/models/origin.hpp"
#include "core/text.hpp"
#include "data/chat_template.hpp"

namespace llamesh::app {
namespace {

bool is_written_in(const data::ChatOpening& opening, std::string_view prompt) {
  prompt.remove_prefix(std::min(prompt.find_first_not_of(" \n"), prompt.size()));
  return std::ranges::any_of(opening.words,
                             [&](const auto& word) { return prompt.starts_with(word); });
}

/// Returns the number of bytes with which a prompt writes this token at its start; 0: it does not.
/// A tokenizer knows a special token by its text, but not every one knows the text of a token.
std::size_t bytes_of_token(const tokenizer::Tokenizer& tokenizer, std::string_view prompt,
                           std::int32_t id) {
  constexpr std::size_t max_bytes = 64;
  for (std::size_t bytes = std::min(prompt.size(), max_bytes); bytes > 0; --bytes)
    if (tokenizer.special_token(prompt.substr(0, bytes)) == id) return bytes;
  return 0;
}

}  // namespace

PromptTokens encode_prompt(const tokenizer::Tokenizer& tokenizer, const data::DataOptions& data,
                           std::string_view prompt) {
  const auto& prefix = tokenizer.prefix_ids();
  const auto bos = prefix.empty() ? tokenizer.bos() : std::optional(prefix.front());
  const auto bos_bytes = bos ? bytes_of_token(tokenizer, prompt, *bos) : 0;
  const auto rest = prompt.substr(bos_bytes);
  const auto chat_template = chat_template_of(data);
  const auto opening = data::opening(chat_template);
  const bool in_template = is_written_in(opening, rest);
  auto start = prefix;
  if (in_template) start = opening.bos && bos ? std::vector{*bos} : std::vector<std::int32_t>();

  PromptTokens result;
  if (bos_bytes > 0) {
    result.ids = {*bos};
    if (!start.empty())
      result.note = fmt::format("the prompt begins with {} itself, so no other is put before it",
                                excerpt(prompt.substr(0, bos_bytes)));
  } else {
    result.ids = start;
    result.added = start.size();
    if (start != prefix)
      result.note = fmt::format(
          "the prompt is written in the chat template {}, so it begins {} BOS as in training",
          data::name_of(chat_template), start.empty() ? "without" : "with");
  }
  // Training encodes a text as if nothing were before it, but a template's BOS is a token within
  // it.
  const bool after_token = in_template && !result.ids.empty();
  tokenizer.encode(rest, after_token ? tokenizer::Chunk::after_token : tokenizer::Chunk::first,
                   result.ids);
  return result;
}

}  // namespace llamesh::app
