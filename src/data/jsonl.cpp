#include "data/jsonl.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "data/chat_template.hpp"

namespace llamesh::data {
namespace {

constexpr std::size_t longest_record = std::size_t{256} << 20;
constexpr std::string_view white_space = " \t\r\n";

struct MessageFields {
  std::optional<std::string> role;
  std::optional<std::string> content;
  std::string tool_field;  ///< name of a field with tool calls, if there is one
};

struct Fields {
  std::optional<std::string> text;
  std::optional<std::string> instruction;
  std::optional<std::string> input;
  std::optional<std::string> output;
  std::optional<std::vector<MessageFields>> messages;
  std::string tool_field;     ///< name of a field with tools, if there is one
  std::string context_field;  ///< name of a field with a system text or earlier turns
};

/// A parser handler that takes the known fields and ignores all else, so that no line needs more
/// memory than its strings.
class Handler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Handler(const LineNumber& where) : where_(where) {}
  Fields take() { return std::move(fields_); }

  bool null() override {
    if (depth_ == 0) refuse_root();
    if (depth_ == 2 && in_messages_) refuse("a list of objects");
    note_unread();
    return true;
  }
  bool boolean(bool /*value*/) override { return other(); }
  bool number_integer(number_integer_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return number(value);
  }
  bool binary(binary_t& /*value*/) override { return other(); }

  bool string(string_t& value) override {
    auto* const field = target();
    if (field == nullptr) {
      if (!value.empty()) note_unread(0);  // tools may be a list written as a string
      return other();
    }
    validate(!field->has_value(), "{}: '{}' appears twice", where_, key_);
    *field = std::move(value);
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1 || (depth_ == 3 && in_messages_)) key_ = name;
    return true;
  }
  bool start_object(std::size_t /*size*/) override {
    if (depth_ == 2 && in_messages_)
      fields_.messages->emplace_back();
    else if (depth_ > 0)
      other();
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 2 && in_messages_) {
      const MessageFields& message = fields_.messages->back();
      if (!message.tool_field.empty() || !message.role || !message.content) refuse_message(message);
      key_ = "messages";
    }
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ == 1 && key_ == "messages") {
      validate(!fields_.messages, "{}: 'messages' appears twice", where_);
      fields_.messages.emplace();
      in_messages_ = true;
    } else {
      other();
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (--depth_ == 1) in_messages_ = false;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    refuse_json(position);
  }
  [[noreturn]] void refuse_json(std::size_t position) const {
    fail(ExitCode::bad_input, "{}: not valid JSON at byte {} of the {}", where_, position,
         where_.record == 0 ? "line; each line holds one object" : "record");
  }

 private:
  /// Returns the destination for a string at this place, or null.
  std::optional<std::string>* target() {
    if (depth_ == 1) {
      const std::pair<std::string_view, std::optional<std::string>*> known[] = {
          {"text", &fields_.text},
          {"instruction", &fields_.instruction},
          {"input", &fields_.input},
          {"output", &fields_.output}};
      for (const auto& [name, field] : known)
        if (key_ == name) return field;
    }
    if (depth_ == 3 && in_messages_) {
      if (key_ == "role") return &fields_.messages->back().role;
      if (key_ == "content") return &fields_.messages->back().content;
    }
    return nullptr;
  }
  /// OpenAI's weight of a message in the loss.
  bool number(double value) {
    const bool is_weight = depth_ == 3 && in_messages_ && key_ == "weight";
    validate(!is_weight || value == 1,
             "{}: message {} has the weight {}, but only 1 is supported; remove the record, or use "
             "data.loss_on=last_assistant",
             where_, fields_.messages->size(), value);
    return other();
  }
  /// Handles a value that is not a string, or an unexpected string.
  bool other() {
    if (depth_ == 0) refuse_root();
    note_unread();
    if (target() != nullptr) refuse("a string");
    if ((depth_ == 1 && key_ == "messages") || (depth_ == 2 && in_messages_))
      refuse("a list of objects");
    return true;
  }
  /// Notes fields that are part of a conversation, but are not read: tools, tool calls, and a
  /// system text or earlier turns outside the messages. A value counts if it is inside the field's
  /// list or object: an empty one is as good as none. With `inside` 0 the field's own value counts.
  void note_unread(int inside = 1) {
    if (depth_ == 1 + inside && (key_ == "tools" || key_ == "functions")) fields_.tool_field = key_;
    if (depth_ == 1 + inside && (key_ == "system" || key_ == "history"))
      fields_.context_field = key_;
    if (depth_ == 3 + inside && in_messages_ && (key_ == "tool_calls" || key_ == "function_call"))
      fields_.messages->back().tool_field = key_;
  }
  [[noreturn]] void refuse(std::string_view expected) const {
    fail(ExitCode::bad_input, "{}: '{}' must be {}", where_, key_, expected);
  }
  [[noreturn]] void refuse_root() const {
    fail(ExitCode::bad_input, "{}: expected one JSON object, {{...}}", where_);
  }
  [[noreturn]] void refuse_message(const MessageFields& message) const {
    validate(message.tool_field.empty(),
             "{}: message {} has '{}'; tools are not supported, remove the record", where_,
             fields_.messages->size(), message.tool_field);
    fail(ExitCode::bad_input, "{}: message {} needs 'role' and 'content'", where_,
         fields_.messages->size());
  }

  LineNumber where_;
  Fields fields_;
  int depth_ = 0;             ///< open containers
  bool in_messages_ = false;  ///< inside the list
  std::string key_;           ///< last key in the root object, or in a message
};

/// Checks that the messages are an optional system message, then user and assistant in turn.
void check_roles(const std::vector<MessageFields>& messages, const LineNumber& where) {
  const bool has_system = !messages.empty() && *messages.front().role == "system";
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = *messages[i].role;
    validate(role != "tool" && role != "function" && role != "ipython",
             "{}: message {} has the role '{}'; tools are not supported, remove the record", where,
             i + 1, role);
    validate(role == "system" || role == "user" || role == "assistant",
             "{}: message {} has the role '{}'; expected system, user or assistant", where, i + 1,
             excerpt(role));
    if (i == 0 && has_system) continue;
    const bool users_turn = (i - (has_system ? 1 : 0)) % 2 == 0;
    validate(role == (users_turn ? "user" : "assistant"),
             "{}: message {} has the role '{}', but it is the {}'s turn; after an optional system "
             "message, user and assistant alternate",
             where, i + 1, role, users_turn ? "user" : "assistant");
  }
}

Document conversation(std::vector<MessageFields> fields, const LineNumber& where,
                      const ConversationOptions& options) {
  validate(options.unknown_template.empty(), "{}: {}", where, options.unknown_template);
  check_roles(fields, where);
  while (!fields.empty() && *fields.back().role != "assistant") fields.pop_back();
  validate(!fields.empty(), "{}: the chat has no assistant message, so there is nothing to learn",
           where);
  std::vector<ChatMessage> messages;
  for (auto& message : fields) {
    const bool empty_answer = *message.role == "assistant" && message.content->empty();
    messages.push_back({std::move(*message.role), std::move(*message.content)});
    validate(!empty_answer, "{}: message {} (assistant) is empty; remove it", where,
             messages.size());
  }
  return render(options.chat_template, messages, where);
}

/// Widens or narrows the loss, which covers all answers.
void set_loss(Document& document, LossOn loss_on) {
  auto& segments = document.segments;
  if (loss_on == LossOn::all)
    for (TextSegment& segment : segments) segment.in_loss = true;
  if (loss_on != LossOn::last_assistant) return;
  const auto in_loss = [](const TextSegment& segment) { return segment.in_loss; };
  const auto end = std::find_if(segments.rbegin(), segments.rend(), in_loss);
  const auto before = std::find_if_not(end, segments.rend(), in_loss);
  for (auto at = before; at != segments.rend(); ++at) at->in_loss = false;
}

Document answer(const Fields& fields, const LineNumber& where) {
  validate(!fields.instruction->empty(), "{}: 'instruction' is empty; remove the record", where);
  const bool has_input = fields.input && !fields.input->empty();
  std::string prompt = "Below is an instruction that describes a task";
  if (has_input) prompt += ", paired with an input that provides further context";
  prompt += ". Write a response that appropriately completes the request.\n\n### Instruction:\n" +
            *fields.instruction;
  if (has_input) prompt += "\n\n### Input:\n" + *fields.input;
  prompt += "\n\n### Response:";
  return {{{std::move(prompt), false, false}, {*fields.output, true, true}}};
}

/// Returns the size in bytes of the object at the start of `text`, by counting braces outside its
/// strings.
std::size_t object_size(std::string_view text, const LineNumber& where) {
  std::int64_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;  // the escaped character does not end the string
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  fail(ExitCode::bad_input,
       "{}: the object does not end within {} bytes{}; a quote or a brace is missing", where,
       text.size(),
       text.size() == longest_record ? ", the limit for a record" : ", the rest of the file");
}

Document read_record(std::string_view record, const LineNumber& where,
                     const ConversationOptions& options) {
  Handler handler(where);
  // The parser would take a NUL for the end of the text.
  if (const auto nul = record.find('\0'); nul != record.npos) handler.refuse_json(nul + 1);
  nlohmann::json::sax_parse(record.begin(), record.end(), &handler);
  Fields fields = handler.take();
  validate(fields.context_field.empty() || !(fields.messages || fields.instruction),
           "{}: has '{}', which is not read; write the conversation as 'messages', with a first "
           "message whose role is system, or remove the field",
           where, fields.context_field);
  if (fields.messages) {
    validate(fields.tool_field.empty(), "{}: has '{}', which are not supported; remove the record",
             where, fields.tool_field);
    return conversation(std::move(*fields.messages), where, options);
  }
  if (fields.instruction && fields.output) return answer(fields, where);
  validate(fields.text.has_value(),
           "{}: has neither 'text', nor 'instruction' and 'output', nor 'messages'", where);
  validate(!fields.text->empty(), "{}: 'text' is empty; remove the record", where);
  return {{{std::move(*fields.text), true, true}}};
}

}  // namespace

Document parse_jsonl(std::string_view record, const LineNumber& where,
                     const ConversationOptions& options) {
  Document document = read_record(record, where, options);
  set_loss(document, options.loss_on);
  return document;
}

bool has_json_name(std::string_view path) {
  const auto begin = path.rfind('.');
  std::string end(begin == path.npos ? "" : path.substr(begin));
  std::ranges::transform(end, end.begin(), [](unsigned char c) { return std::tolower(c); });
  return end == ".jsonl" || end == ".ndjson" || end == ".json";
}

JsonRecords::JsonRecords(std::string_view text, const std::string& path)
    : rest_(text), path_(path) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
  const std::size_t first = rest_.find_first_not_of(white_space);
  in_array_ = first != rest_.npos && rest_[first] == '[';
  if (in_array_) skip(first + 1);
}

bool JsonRecords::next(std::string_view& record) {
  return in_array_ ? next_object(record) : next_line(record);
}

bool JsonRecords::next_line(std::string_view& line) {
  while (!rest_.empty()) {
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_;
    validate(line.size() <= longest_record,
             "{}: the line has {} bytes (at most {} are allowed); is this a JSONL file?", where(),
             line.size(), longest_record);
    if (line.find_first_not_of(white_space) != line.npos) return true;
  }
  return false;
}

bool JsonRecords::next_object(std::string_view& object) {
  skip_space();
  if (rest_.empty() && ended_) return false;
  if (take(']')) {
    skip_space();
    validate(rest_.empty(), "'{}', line {}: unexpected text after the end of the JSON array", path_,
             next_line_);
    ended_ = true;
    return false;
  }
  validate(record_ == 0 || take(','),
           "'{}', line {}: neither a comma nor ] follows record {} of the JSON array; is the file "
           "truncated?",
           path_, next_line_, record_);
  skip_space();
  ++record_;
  line_ = next_line_;
  validate(rest_.starts_with('{'), "{}: expected one JSON object, {{...}}", where());
  object = rest_.substr(0, object_size(rest_.substr(0, longest_record), where()));
  skip(object.size());
  return true;
}

void JsonRecords::skip(std::size_t bytes) {
  next_line_ += std::ranges::count(rest_.substr(0, bytes), '\n');
  rest_.remove_prefix(bytes);
}

void JsonRecords::skip_space() {
  skip(std::min(rest_.find_first_not_of(white_space), rest_.size()));
}

bool JsonRecords::take(char expected) {
  if (!rest_.starts_with(expected)) return false;
  rest_.remove_prefix(1);
  return true;
}

}  // namespace llamesh::data
