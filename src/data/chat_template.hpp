#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/jsonl.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {

/// Returns the built-in templates with their names in input files, `plain` first.
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
/// if the tokenizer's EOS does, for `plain`, and for one that is not built in.
std::string turn_end(ChatTemplate chat_template);

/// Beginning of a template's conversations.
struct ChatOpening {
  bool bos = false;                ///< BOS comes first
  std::vector<std::string> words;  ///< then one of these: "<|im_start|>", "[INST]"
};

/// Returns how conversations in this template begin. No words for `plain`, whose conversations
/// begin as texts do, and for one that is not built in.
ChatOpening opening(ChatTemplate chat_template);

/// Returns the template whose Jinja text has this hash (hash_of). Nothing is normalized: a template
/// that was edited is another one.
std::optional<ChatTemplate> find_chat_template(std::uint64_t hash);

/// Returns the options for conversations. `automatic` becomes the template in the folder of
/// `options.tokenizer`: a built-in one if it is known, otherwise `jinja`; `plain` if the folder has
/// none. Throws a user error for `jinja` if it has none, and no other is recorded.
ConversationOptions conversation_options(const DataOptions& options);

/// Returns the template with which Jinja writes conversations; nothing if a built-in one does.
/// Throws a user error if one is recorded, and no longer to be found.
std::optional<tokenizer::ChatTemplateText> jinja_template_of(const DataOptions& options);

/// Returns a template's name, with the hash of its text if it is not built in: "jinja:0123...", as
/// DataOrder::chat_template has it.
std::string name_with_hash(const DataOptions& options);
/// Chooses the template with such a name, whose text a run keeps in `file`, whatever is in the
/// tokenizer's folder by now.
void use_recorded_template(DataOptions& options, const std::string& name, const std::string& file);

}  // namespace llamesh::data
