#include "data/jsonl.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

constexpr std::size_t longest_line = std::size_t{256} << 20;

struct Message {
  std::optional<std::string> role;
  std::optional<std::string> content;
};

struct Fields {
  std::optional<std::string> text;
  std::optional<std::string> instruction;
  std::optional<std::string> input;
  std::optional<std::string> output;
  std::optional<std::vector<Message>> messages;
};

/// Takes the fields that are known out of the parser's events and lets all else pass, so that no
/// line makes more memory than its own strings.
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
    validate(!field->has_value(), "'{}', line {}: '{}' is there twice", where_.path, where_.line,
             key_);
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
      const Message& message = fields_.messages->back();
      if (!message.role || !message.content) refuse_message();
      key_ = "messages";
    }
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ == 1 && key_ == "messages") {
      validate(!fields_.messages, "'{}', line {}: 'messages' is there twice", where_.path,
               where_.line);
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
    fail(ExitCode::bad_input,
         "'{}', line {}: not valid JSON at byte {} of the line; each line holds one object",
         where_.path, where_.line, position);
  }

 private:
  /// Where a string at this place belongs, or null.
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
  /// Something that is no string, or a string where nobody looks for one.
  bool other() {
    if (depth_ == 0) refuse_root();
    if (target() != nullptr) refuse("a string");
    if ((depth_ == 1 && key_ == "messages") || (depth_ == 2 && in_messages_))
      refuse("a list of objects");
    return true;
  }
  [[noreturn]] void refuse(std::string_view expected) const {
    fail(ExitCode::bad_input, "'{}', line {}: '{}' must be {}", where_.path, where_.line, key_,
         expected);
  }
  [[noreturn]] void refuse_root() const {
    fail(ExitCode::bad_input, "'{}', line {}: expected one JSON object, {{...}}", where_.path,
         where_.line);
  }
  [[noreturn]] void refuse_message() const {
    fail(ExitCode::bad_input, "'{}', line {}: message {} needs 'role' and 'content'", where_.path,
         where_.line, fields_.messages->size());
  }

  LineNumber where_;
  Fields fields_;
  int depth_ = 0;             ///< containers that are open
  bool in_messages_ = false;  ///< inside the list
  std::string key_;           ///< the last one of the root object, or of a message
};

Document chat(std::vector<Message> messages, const LineNumber& where) {
  constexpr std::array<std::string_view, 3> roles = {"system", "user", "assistant"};
  Document document;
  std::string prompt;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = *messages[i].role;
    std::string& content = *messages[i].content;
    validate(std::ranges::find(roles, role) != roles.end(),
             "'{}', line {}: message {} has the role '{}'; system, user and assistant are known",
             where.path, where.line, i + 1, role.substr(0, 40));
    prompt += "<|" + role + "|>\n";
    if (role != "assistant") {
      prompt += content + '\n';
      continue;
    }
    validate(!content.empty(), "'{}', line {}: message {}, of the assistant, is empty; take it out",
             where.path, where.line, i + 1);
    document.segments.push_back({std::exchange(prompt, {}), false, false});
    document.segments.push_back({std::move(content), true, true});
  }
  validate(!document.segments.empty(),
           "'{}', line {}: no message is the assistant's, so there is nothing to learn", where.path,
           where.line);
  return document;
}

Document answer(const Fields& fields, const LineNumber& where) {
  validate(!fields.instruction->empty() && !fields.output->empty(),
           "'{}', line {}: '{}' is empty; take the line out", where.path, where.line,
           fields.instruction->empty() ? "instruction" : "output");
  const bool has_input = fields.input && !fields.input->empty();
  std::string prompt = "Below is an instruction that describes a task";
  if (has_input) prompt += ", paired with an input that provides further context";
  prompt += ". Write a response that appropriately completes the request.\n\n### Instruction:\n" +
            *fields.instruction;
  if (has_input) prompt += "\n\n### Input:\n" + *fields.input;
  prompt += "\n\n### Response:\n";
  return {{{std::move(prompt), false, false}, {*fields.output, true, true}}};
}

}  // namespace

Document parse_jsonl(std::string_view line, const LineNumber& where) {
  Handler handler(where);
  nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
  Fields fields = handler.take();
  if (fields.messages) return chat(std::move(*fields.messages), where);
  if (fields.instruction && fields.output) return answer(fields, where);
  validate(fields.text.has_value(),
           "'{}', line {}: has neither 'text', nor 'instruction' and 'output', nor 'messages'",
           where.path, where.line);
  validate(!fields.text->empty(), "'{}', line {}: 'text' is empty; take the line out", where.path,
           where.line);
  return {{{std::move(*fields.text), true, true}}};
}

bool JsonLines::next(std::string_view& line) {
  while (!rest_.empty()) {
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_;
    validate(line.size() <= longest_line,
             "'{}', line {}: {} bytes are too long for a line (at most {}); is this a JSONL file?",
             path_, line_, line.size(), longest_line);
    if (line.find_first_not_of(" \t\r") != line.npos) return true;
  }
  return false;
}

}  // namespace llamesh::data
