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

/// Returns the length in bytes of this token's text at the start of the prompt; 0 if the prompt
/// does not begin with it. Tries all lengths, since not every tokenizer can name the text of a
/// token.
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
      result.note = fmt::format("the prompt already begins with {}, so no other is added",
                                excerpt(prompt.substr(0, bos_bytes)));
  } else {
    result.ids = start;
    result.added = start.size();
    if (start != prefix)
      result.note =
          fmt::format("the prompt uses the chat template {}, so it begins {} BOS as in training",
                      data::name_of(chat_template), start.empty() ? "without" : "with");
  }
  // Training encodes text as if it came first; a template's BOS is part of that text.
  const bool after_token = in_template && !result.ids.empty();
  tokenizer.encode(rest, after_token ? tokenizer::Chunk::after_token : tokenizer::Chunk::first,
                   result.ids);
  return result;
}

}  // namespace llamesh::app
