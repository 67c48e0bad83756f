#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/encode_jsonl.hpp"

namespace llamesh::data {

/// Returns a conversation's ids as the model has read them in training, up to where the assistant
/// has to answer. The last message is not the assistant's. Throws a user error that begins with
/// `where` if the template refuses it.
std::vector<std::int32_t> chat_prompt(const tokenizer::Tokenizer& tokenizer,
                                      const DocumentTokens& special,
                                      std::span<const ChatMessage> messages,
                                      const LineNumber& where);

/// Returns the token that ends an answer in this template; nothing if it has none.
std::optional<std::int32_t> answer_end(const tokenizer::Tokenizer& tokenizer,
                                       const DocumentTokens& special);

}  // namespace llamesh::data
