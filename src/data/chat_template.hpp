#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/jsonl.hpp"

namespace llamesh::data {

/// Returns the templates with their names in input files, `plain` first; not `auto`.
std::span<const std::pair<std::string_view, ChatTemplate>> chat_template_names();
std::string_view name_of(ChatTemplate chat_template);

/// Writes a conversation as a model of this family expects it: byte for byte what transformers'
/// apply_chat_template makes from the family's Jinja template. The roles are an optional system,
/// then user and assistant in turn; the last message is the assistant's. The loss covers what the
/// assistant has to generate: everything from the end of the prompt to the token that ends the
/// turn. Throws a user error that begins with `where` for a system message that the template would
/// drop.
Document render(ChatTemplate chat_template, std::span<const ChatMessage> messages,
                const LineNumber& where);

/// Returns the special token that ends an answer in this template, as written: "<|im_end|>". Empty
/// if the tokenizer's EOS does, and for `plain` and `automatic`.
std::string turn_end(ChatTemplate chat_template);

/// Beginning of a template's conversations.
struct ChatOpening {
  bool bos = false;                ///< BOS comes first
  std::vector<std::string> words;  ///< then one of these: "<|im_start|>", "[INST]"
};

/// Returns how conversations in this template begin. No words for `plain`, whose conversations
/// begin as texts do, and for `automatic`.
ChatOpening opening(ChatTemplate chat_template);

/// Returns the template whose Jinja text has this hash (hash_of). Nothing is normalized: a template
/// that was edited is another one.
std::optional<ChatTemplate> find_chat_template(std::uint64_t hash);

/// Returns the options for conversations. `automatic` becomes the template in the folder of
/// `options.tokenizer`, or `plain` if that has none. If it is not one of those above, the first
/// conversation is an error.
ConversationOptions conversation_options(const DataOptions& options);

}  // namespace llamesh::data
