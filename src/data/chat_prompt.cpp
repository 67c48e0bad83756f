#include "data/chat_prompt.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "data/chat_template.hpp"
#include "data/jinja_template.hpp"

namespace llamesh::data {
namespace {

using Json = nlohmann::ordered_json;

Document jinja_prompt(const JinjaTemplate& jinja, std::span<const ChatMessage> messages,
                      const LineNumber& where) {
  Json chat{{"messages", Json::array()}, {"prompt", true}};
  for (const auto& message : messages)
    chat["messages"].push_back({{"role", message.role}, {"content", message.content}});
  Document document{.segments = {}, .has_special_tokens = true};
  for (auto& part : jinja.render(chat, where)) document.segments.push_back(std::move(part.segment));
  return document;
}

/// Renders the conversation with some answer, and leaves out what that adds.
Document built_in_prompt(ChatTemplate chat_template, std::span<const ChatMessage> messages,
                         const LineNumber& where) {
  std::vector<ChatMessage> answered(messages.begin(), messages.end());
  answered.push_back({"assistant", "a"});
  Document document = render(chat_template, answered, where);
  auto& segments = document.segments;
  while (!segments.back().in_loss) segments.pop_back();
  while (segments.back().in_loss) segments.pop_back();
  return document;
}

}  // namespace

std::vector<std::int32_t> chat_prompt(const tokenizer::Tokenizer& tokenizer,
                                      const DocumentTokens& special,
                                      std::span<const ChatMessage> messages,
                                      const LineNumber& where) {
  const auto& chat = special.conversations;
  Document document = chat.jinja ? jinja_prompt(*chat.jinja, messages, where)
                                 : built_in_prompt(chat.chat_template, messages, where);
  document.is_prompt = true;
  return encode(tokenizer, special, document, where).ids;
}

std::optional<std::int32_t> answer_end(const tokenizer::Tokenizer& tokenizer,
                                       const DocumentTokens& special) {
  const std::string nowhere = "conversation";
  const auto document =
      encode(tokenizer, special,
             parse_jsonl(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", )"
                         R"("content": "b"}]})",
                         {nowhere, 1}, special.conversations),
             {nowhere, 1});
  // The last token in the loss: what comes before the last masked range, if that reaches the end.
  const auto& masked = document.masked_ranges;
  auto end = std::ssize(document.ids);
  if (!masked.empty() && masked.back() == end) end = masked[masked.size() - 2];
  const auto id = document.ids[static_cast<std::size_t>(end - 1)];
  const auto tokens = tokenizer.control_tokens();
  const bool is_control = std::ranges::any_of(
      tokens, [&](const auto& token) { return tokenizer.special_token(token.text) == id; });
  return is_control || id == special.eos ? std::optional(id) : std::nullopt;
}

}  // namespace llamesh::data
