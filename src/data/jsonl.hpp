#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Content of a segment.
enum class SegmentKind : std::uint8_t {
  text,     ///< text in which special tokens are recognized, as in a text file
  content,  ///< text that never becomes special tokens: what users and models wrote
  token,    ///< the special token that is written like this
  bos,      ///< the tokenizer's BOS; no text
  eos,      ///< the tokenizer's EOS; no text
};

/// A part of a document that is either in the loss as a whole, or masked from it.
struct TextSegment {
  std::string text;
  bool in_loss = true;
  bool eos_follows = false;  ///< in the loss if the text is
  SegmentKind kind = SegmentKind::text;
};

/// A record converted to the text that a model reads.
struct Document {
  std::vector<TextSegment> segments;  ///< at least one; only an answer may be without text
  /// A template has put all special tokens where they belong: no prefix and no suffix is added.
  bool has_special_tokens = false;
  bool is_prompt = false;      ///< an answer follows, so nothing ends it
  std::string_view form = {};  ///< that its record has: "a conversation"
};

/// A turn in a conversation.
struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
};

class JinjaTemplate;  // jinja_template.hpp

/// Rules for turning records into documents.
struct ConversationOptions {
  ChatTemplate chat_template = ChatTemplate::plain;
  std::shared_ptr<const JinjaTemplate> jinja = {};  ///< writes them, if chat_template is `jinja`
  LossOn loss_on = LossOn::assistant;
  Reasoning reasoning = Reasoning::refuse;
  RecordColumns columns = {};
  bool pairs = false;  ///< records are pairs (pair_records.hpp)
};

/// A record's position, for messages: "'f.jsonl', line 7" or "'f.json', record 3 (line 7)".
struct LineNumber {
  const std::string& path;
  std::int64_t line;        ///< from 1
  std::int64_t record = 0;  ///< index in a JSON array, from 1; 0: the record is the line
};

/// Parses one record, a JSON object. The first matching form below applies; a null field counts as
/// absent, and other fields are ignored. options.columns may give fields other names.
///
/// - `messages`, a list of {role, content}: a conversation, which render() writes by its template.
///   The first role may be system, or `system` beside the list holds that message; then user and
///   assistant take turns. All that the assistant has to generate is in the loss, except in turns
///   whose `train`, `weight` or like key is 0 or false. Anything after its last turn is dropped.
///   With options.jinja, roles and their order are the template's affair, and it reads `tools`,
///   `tool_calls` and reasoning if it names them.
/// - `conversations`, or `conversation`, a list of {from, value} (ShareGPT): likewise, with the
///   roles human and gpt.
/// - `prompt` and `completion`, both lists of messages (TRL): one conversation, in which only the
///   completion is in the loss.
/// - `instruction`, `output` and optionally `input`: Alpaca's prompts (PROMPT_DICT in train.py,
///   tatsu-lab/stanford_alpaca). The prompt is masked from the loss; the output and its EOS are
///   not. The output may be empty, as in some Alpaca records: then only EOS is learned.
/// - `instruction`, `response` and optionally `context` (Dolly): likewise.
/// - `prompt` and `completion`, both texts: one after the other; the prompt is masked from the
///   loss, the completion and its EOS are not.
/// - `text`: all of it is in the loss.
///
/// `options.loss_on` then widens or narrows the loss. Throws a user error that begins with `where`
/// if the record is not a JSON object, has none of these fields, has nothing to learn from, has
/// roles in another order, or has fields that read_fields() refuses. Memory: a few times the
/// record.
Document parse_jsonl(std::string_view record, const LineNumber& where,
                     const ConversationOptions& options = {});

struct RecordFields;  // record_fields.hpp

/// Returns the document that a record with these fields makes, like parse_jsonl().
Document document_from(RecordFields fields, std::string_view record, const LineNumber& where,
                       const ConversationOptions& options);

/// Returns true for file names that are read as records: .jsonl and .json.
bool has_json_name(std::string_view path);

/// A reader that splits a file into records: its lines, skipping blank ones, or, if the file begins
/// with [, the objects in a single JSON array. It only finds record boundaries.
class JsonRecords {
 public:
  /// Borrows `text` and `path`.
  JsonRecords(std::string_view text, const std::string& path);

  /// Reads the next record; false at the end. Throws a user error with file and line if a record
  /// exceeds 256 MiB, an array element is not an object, or the array is truncated.
  bool next(std::string_view& record);
  /// Returns the position of next()'s last record.
  LineNumber where() const { return {path_, line_, record_}; }

 private:
  bool next_line(std::string_view& line);
  bool next_object(std::string_view& object);
  void skip(std::size_t bytes);
  void skip_space();
  bool take(char expected);

  std::string_view rest_;
  const std::string& path_;
  bool in_array_ = false;
  bool ended_ = false;          ///< end of the array reached
  std::int64_t line_ = 0;       ///< where the last record begins
  std::int64_t record_ = 0;     ///< index of the last record in an array
  std::int64_t next_line_ = 1;  ///< where rest_ begins, for an array
};

}  // namespace llamesh::data

template <>
struct fmt::formatter<llamesh::data::LineNumber> {
  static constexpr auto parse(const format_parse_context& context) { return context.begin(); }
  static auto format(const llamesh::data::LineNumber& where, format_context& context) {
    return where.record == 0 ? format_to(context.out(), "'{}', line {}", where.path, where.line)
                             : format_to(context.out(), "'{}', record {} (line {})", where.path,
                                         where.record, where.line);
  }
};
