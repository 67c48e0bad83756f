#pragma once

#include <array>
#include <string_view>

#include "data/jsonl.hpp"

namespace llamesh::data {

/// Parses a record with an answer that is preferred and one that is not. Returns two documents with
/// the same prompt, `chosen` first, in which only the answers are in the loss. The first matching
/// form applies:
///
/// - `prompt`, `chosen` and `rejected`, all lists of messages (TRL): two conversations.
/// - `chosen` and `rejected`, both whole conversations: their answer is what follows the last
///   message that they share. A `prompt` that is a text is ignored, as in UltraFeedback.
/// - `prompt`, `chosen` and `rejected`, all texts: the prompt, then an answer with its EOS.
/// - `chosen` and `rejected`, both texts (Anthropic's HH): their answer follows the last
///   "\n\nAssistant:".
///
/// Throws a user error that begins with `where` if the record has none of these forms, if an answer
/// is empty, if both are equal or the prompts differ, or as parse_jsonl().
std::array<Document, 2> parse_pair(std::string_view record, const LineNumber& where,
                                   const ConversationOptions& options);

}  // namespace llamesh::data
