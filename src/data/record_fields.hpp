#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_options.hpp"
#include "data/jsonl.hpp"

namespace llamesh::data {

/// Fields of a message.
struct MessageFields {
  std::optional<std::string> role;
  std::optional<std::string> content;
  /// Value of `train`, `weight` or another key that says whether the turn is in the loss.
  std::optional<bool> in_loss;
  std::string loss_key;  ///< its name
};

using Messages =
    std::vector<MessageFields>;  ///< each has a role; a content, or a template reads it

/// Fields of a record, a JSON object, that make a document.
struct RecordFields {
  std::optional<std::string> text;
  std::optional<std::string> instruction, input, output;
  std::optional<std::string> response, context;  ///< other names for `output` and `input`
  std::optional<std::string> prompt, completion;
  std::optional<std::string> system;  ///< beside `messages`
  std::optional<Messages> messages, prompt_messages, completion_messages;
  std::optional<std::string> chosen, rejected;  ///< of a pair (pair_records.hpp)
  std::optional<Messages> chosen_messages, rejected_messages;
  /// The lists' names in the record.
  std::string messages_key, prompt_key, completion_key, chosen_key, rejected_key;
  std::string_view unread;  ///< name of a field that would change the document; empty: none
  std::string_view advice;  ///< what to do about it
};

/// Parses a record. Other fields are ignored, so no record needs more memory than its strings.
/// Throws a user error that begins with `where` if it is not a JSON object, if a field has another
/// type, or if a message has a field whose loss would change what the model learns: tools, images,
/// and reasoning unless it is dropped. A field that options.jinja names is there for it.
RecordFields read_fields(std::string_view record, const LineNumber& where,
                         const ConversationOptions& options);

/// Returns a record's whole conversation for options.jinja, {"messages": [...], "tools": [...]},
/// with all fields of its first `count` messages, `system` included. The names of roles, contents
/// and reasoning are those that templates know, as in transformers; fields that say what is in the
/// loss are left out, and so are null ones. `fields` are the record's. Throws a user error that
/// begins with `where` if the record is nested more than 32 deep, or if a text in place of a list
/// of tools is not JSON.
nlohmann::ordered_json whole_conversation(std::string_view record, const RecordFields& fields,
                                          std::size_t count, const LineNumber& where,
                                          const ConversationOptions& options);

}  // namespace llamesh::data
