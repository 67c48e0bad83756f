#include "data/jsonl.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

constexpr std::size_t longest_record = std::size_t{256} << 20;
constexpr std::string_view white_space = " \t\r\n";

struct ChatMessage {
  std::optional<std::string> role;
  std::optional<std::string> content;
};

struct Fields {
  std::optional<std::string> text;
  std::optional<std::string> instruction;
  std::optional<std::string> input;
  std::optional<std::string> output;
  std::optional<std::vector<ChatMessage>> messages;
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
    return true;
  }
  bool boolean(bool /*value*/) override { return other(); }
  bool number_integer(number_integer_t /*value*/) override { return other(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return other(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return other(); }
  bool binary(binary_t& /*value*/) override { return other(); }

  bool string(string_t& value) override {
    auto* const field = target();
    if (field == nullptr) return other();
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
      const ChatMessage& message = fields_.messages->back();
      if (!message.role || !message.content) refuse_message();
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
  /// Handles a value that is not a string, or an unexpected string.
  bool other() {
    if (depth_ == 0) refuse_root();
    if (target() != nullptr) refuse("a string");
    if ((depth_ == 1 && key_ == "messages") || (depth_ == 2 && in_messages_))
      refuse("a list of objects");
    return true;
  }
  [[noreturn]] void refuse(std::string_view expected) const {
    fail(ExitCode::bad_input, "{}: '{}' must be {}", where_, key_, expected);
  }
  [[noreturn]] void refuse_root() const {
    fail(ExitCode::bad_input, "{}: expected one JSON object, {{...}}", where_);
  }
  [[noreturn]] void refuse_message() const {
    fail(ExitCode::bad_input, "{}: message {} needs 'role' and 'content'", where_,
         fields_.messages->size());
  }

  LineNumber where_;
  Fields fields_;
  int depth_ = 0;             ///< open containers
  bool in_messages_ = false;  ///< inside the list
  std::string key_;           ///< last key in the root object, or in a message
};

Document chat(std::vector<ChatMessage> messages, const LineNumber& where) {
  constexpr std::array<std::string_view, 3> roles = {"system", "user", "assistant"};
  Document document;
  std::string prompt;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = *messages[i].role;
    std::string& content = *messages[i].content;
    validate(std::ranges::find(roles, role) != roles.end(),
             "{}: message {} has the role '{}'; expected system, user or assistant", where, i + 1,
             role.substr(0, 40));
    prompt += "<|" + role + "|>\n";
    if (role != "assistant") {
      prompt += content + '\n';
      continue;
    }
    validate(!content.empty(), "{}: message {} (assistant) is empty; remove it", where, i + 1);
    document.segments.push_back({std::exchange(prompt, {}), false, false});
    document.segments.push_back({std::move(content), true, true});
  }
  validate(!document.segments.empty(),
           "{}: the chat has no assistant message, so there is nothing to learn", where);
  return document;
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

}  // namespace

Document parse_jsonl(std::string_view record, const LineNumber& where) {
  Handler handler(where);
  // The parser would take a NUL for the end of the text.
  if (const auto nul = record.find('\0'); nul != record.npos) handler.refuse_json(nul + 1);
  nlohmann::json::sax_parse(record.begin(), record.end(), &handler);
  Fields fields = handler.take();
  if (fields.messages) return chat(std::move(*fields.messages), where);
  if (fields.instruction && fields.output) return answer(fields, where);
  validate(fields.text.has_value(),
           "{}: has neither 'text', nor 'instruction' and 'output', nor 'messages'", where);
  validate(!fields.text->empty(), "{}: 'text' is empty; remove the record", where);
  return {{{std::move(*fields.text), true, true}}};
}

bool has_json_name(std::string_view path) {
  return path.ends_with(".jsonl") || path.ends_with(".json");
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
