#include "data/jsonl.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "data/chat_template.hpp"
#include "data/jinja_template.hpp"
#include "data/record_fields.hpp"

namespace llamesh::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t longest_record = std::size_t{256} << 20;
constexpr std::string_view white_space = " \t\r\n";

constexpr std::string_view tool_roles[] = {"tool",          "function",    "ipython",
                                           "function_call", "observation", "tool_call"};

/// Checks that the messages are an optional system message, then user and assistant in turn.
void check_roles(const std::vector<MessageFields>& messages, const LineNumber& where) {
  const bool has_system = !messages.empty() && *messages.front().role == "system";
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = *messages[i].role;
    validate(std::ranges::find(tool_roles, role) == std::end(tool_roles),
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

/// Sets which segments are in the loss: of the answers, each a run of segments that are now, those
/// that `answers` and `loss_on` both include. Their borders stay, and so do the tokens.
void set_loss(Document& document, std::vector<bool> answers, LossOn loss_on) {
  if (loss_on == LossOn::last_assistant) std::fill(answers.begin(), answers.end() - 1, false);
  std::size_t begun = 0;
  bool in_answer = false;
  for (TextSegment& segment : document.segments) {
    if (segment.in_loss && !in_answer) ++begun;
    in_answer = segment.in_loss;
    segment.in_loss = in_answer ? answers.at(begun - 1) : loss_on == LossOn::all;
  }
}

/// Checks that a user's or system message asks for the loss that it has. OpenAI's weight 1 is the
/// default of all messages and asks for nothing.
void check_prompt(const MessageFields& message, std::size_t number, const LineNumber& where,
                  LossOn loss_on) {
  if (!message.in_loss || (message.loss_key == "weight" && *message.in_loss)) return;
  const bool in_loss = loss_on == LossOn::all;
  validate(*message.in_loss == in_loss,
           "{}: message {} ({}) has '{}', but prompts are {} the loss; remove the key, or set "
           "data.loss_on={}",
           where, number, *message.role, message.loss_key, in_loss ? "all in" : "not in",
           in_loss ? "assistant" : "all");
}

/// A conversation as messages without their fields' names.
struct Turns {
  std::vector<ChatMessage> messages;
  std::vector<bool> answers;  ///< which are in the loss
};

Turns turns_of(std::vector<MessageFields> fields, const LineNumber& where,
               const ConversationOptions& options) {
  if (!options.jinja) check_roles(fields, where);
  const auto last = fields.empty() ? "" : *fields.back().role;
  while (!fields.empty() && *fields.back().role != "assistant") fields.pop_back();
  validate(!fields.empty(), "{}: the chat has no assistant message, so there is nothing to learn{}",
           where,
           last.empty() || last == "user"
               ? ""
               : fmt::format("; the last one's role is '{}'", excerpt(last)));
  Turns turns;
  auto& [messages, answers] = turns;
  for (auto& message : fields) {
    const bool is_answer = *message.role == "assistant";
    validate(!is_answer || !message.content->empty() || options.jinja,
             "{}: message {} (assistant) is empty; remove it", where, messages.size() + 1);
    if (is_answer)
      answers.push_back(message.in_loss.value_or(true));
    else
      check_prompt(message, messages.size() + 1, where, options.loss_on);
    messages.push_back({std::move(*message.role), std::move(*message.content)});
  }
  return turns;
}

/// Checks what the template cannot: a role that it never mentions would be written, or left out,
/// without a word.
void check_chat(const Json& chat, const LineNumber& where, const ConversationOptions& options) {
  constexpr std::string_view known[] = {"system", "user", "assistant"};
  std::size_t number = 0;
  for (const auto& message : chat.at("messages")) {
    ++number;
    const auto& role = message.at("role").get_ref<const std::string&>();
    validate(
        std::ranges::find(known, role) != std::end(known) || options.jinja->names(role),
        "{}: message {} has the role '{}', which the chat template does not know; system, user "
        "(ShareGPT: human), assistant (gpt) and the roles that it names are known",
        where, number, excerpt(role));
    validate(role != "assistant" || message.contains("tool_calls") ||
                 !message.value("content", "").empty(),
             "{}: message {} (assistant) is empty; remove it", where, number);
  }
}

/// Renders a conversation with its model's own template.
Document templated(const Json& chat, std::vector<bool> answers, const LineNumber& where,
                   const ConversationOptions& options) {
  check_chat(chat, where, options);
  auto parts = options.jinja->render(chat, where);
  int found = 0;
  for (const auto& part : parts) found = std::max(found, part.answer + 1);
  if (options.loss_on == LossOn::last_assistant)
    std::fill(answers.begin(), answers.end() - 1, false);
  const bool all = std::ranges::find(answers, false) == answers.end();
  validate(all || std::cmp_equal(found, answers.size()),
           "{}: the chat template marks {} answers, but the conversation has {}, so it is unknown "
           "which are to be learned; mark each once",
           where, found, answers.size());
  Document document{.segments = {}, .has_special_tokens = true};
  for (auto& [segment, answer] : parts) {
    const bool learned = answer >= 0 && (all || answers[static_cast<std::size_t>(answer)]);
    segment.in_loss = learned || options.loss_on == LossOn::all;
    document.segments.push_back(std::move(segment));
  }
  return document;
}

Document conversation(Messages messages, std::string_view record, const RecordFields& fields,
                      const LineNumber& where, const ConversationOptions& options) {
  auto turns = turns_of(std::move(messages), where, options);
  Document document;
  if (options.jinja) {
    document = templated(whole_conversation(record, fields, turns.messages.size(), where, options),
                         std::move(turns.answers), where, options);
  } else {
    document = render(options.chat_template, turns.messages, where);
    set_loss(document, std::move(turns.answers), options.loss_on);
  }
  document.form = "a conversation";
  return document;
}

/// Joins a prompt and a completion to a conversation in which only the latter is in the loss.
Messages joined(RecordFields& fields, const LineNumber& where) {
  validate(fields.prompt_messages && fields.completion_messages,
           "{}: of 'prompt' and 'completion', only one is a list of messages; write both as lists, "
           "or both as texts",
           where);
  Messages all = std::move(*fields.prompt_messages);
  for (auto& message : all)
    if (*message.role == "assistant" && !message.in_loss) message.in_loss = false;
  std::ranges::move(*fields.completion_messages, std::back_inserter(all));
  return all;
}

/// Returns a conversation's messages; nothing if the record has another form.
std::optional<Messages> messages_of(RecordFields& fields, const LineNumber& where) {
  auto messages = std::move(fields.messages);
  const bool is_joined = fields.prompt_messages || fields.completion_messages;
  if (!messages && is_joined) messages = joined(fields, where);
  if (!messages || !fields.system || fields.system->empty()) return messages;
  validate(messages->empty() || *messages->front().role != "system",
           "{}: has 'system' beside a first message with that role; keep one of them", where);
  messages->insert(messages->begin(), {"system", fields.system, {}, {}});
  return messages;
}

/// A prompt, and behind it the completion that is learned.
Document completed(std::string prompt, std::string completion, LossOn loss_on) {
  return {
      {{std::move(prompt), loss_on == LossOn::all, false}, {std::move(completion), true, true}}};
}

Document answer(const RecordFields& fields, const std::optional<std::string>& input,
                const std::string& output, const LineNumber& where, LossOn loss_on) {
  validate(!fields.instruction->empty(), "{}: 'instruction' is empty; remove the record", where);
  const bool has_input = input && !input->empty();
  std::string prompt = "Below is an instruction that describes a task";
  if (has_input) prompt += ", paired with an input that provides further context";
  prompt += ". Write a response that appropriately completes the request.\n\n### Instruction:\n" +
            *fields.instruction;
  if (has_input) prompt += "\n\n### Input:\n" + *input;
  prompt += "\n\n### Response:";
  return completed(std::move(prompt), output, loss_on);
}

/// Returns a document for a record that is no conversation; nothing if it has no known form.
std::optional<Document> document_of(RecordFields& fields, const LineNumber& where, LossOn loss_on) {
  const auto with_form = [](Document document, std::string_view form) {
    document.form = form;
    return document;
  };
  if (fields.instruction && (fields.output || fields.response)) {
    const bool alpaca = fields.output.has_value();
    return with_form(answer(fields, alpaca ? fields.input : fields.context,
                            alpaca ? *fields.output : *fields.response, where, loss_on),
                     "an instruction");
  }
  if (fields.prompt && fields.completion) {
    validate(!fields.prompt->empty(), "{}: 'prompt' is empty; remove the record", where);
    return with_form(completed(std::move(*fields.prompt), std::move(*fields.completion), loss_on),
                     "a prompt with its completion");
  }
  if (!fields.text) return std::nullopt;
  validate(!fields.text->empty(), "{}: 'text' is empty; remove the record", where);
  return with_form({{{std::move(*fields.text), true, true}}}, "a text");
}

/// Returns what users can do about a record without a known form: its fields that hold a text or a
/// list may be the known ones by other names.
std::string advice_for(std::string_view record) {
  constexpr std::size_t most = 8;
  std::vector<std::string> names;
  const auto json = nlohmann::json::parse(record.begin(), record.end(), nullptr, false);
  for (const auto& [name, value] : json.items())
    if ((value.is_string() || value.is_array()) && names.size() < most)
      names.push_back(fmt::format("'{}'", excerpt(name)));
  if (names.empty()) return "";
  return fmt::format(
      "; it has {}: say in data.columns which is which, e.g. data.columns.prompt=NAME",
      fmt::join(names, ", "));
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

Document parse_jsonl(std::string_view record, const LineNumber& where,
                     const ConversationOptions& options) {
  return document_from(read_fields(record, where, options), record, where, options);
}

Document document_from(RecordFields fields, std::string_view record, const LineNumber& where,
                       const ConversationOptions& options) {
  const bool may_be_text =
      !(fields.messages || fields.prompt_messages || fields.completion_messages ||
        fields.instruction || (fields.prompt && fields.completion));
  validate(may_be_text || fields.unread.empty(), "{}: has '{}'; {}", where, fields.unread,
           fields.advice);
  if (auto messages = messages_of(fields, where))
    return conversation(std::move(*messages), record, fields, where, options);
  validate(may_be_text || !fields.system || fields.system->empty(),
           "{}: has 'system' without 'messages'; write the conversation as 'messages', or remove "
           "the field",
           where);
  auto document = document_of(fields, where, options.loss_on);
  validate(document || !(fields.rejected || fields.rejected_messages),
           "{}: has 'rejected', so the record is a pair; set train.objective to dpo or ipo", where);
  validate(document.has_value(),
           "{}: has neither 'messages', nor 'instruction' and 'output', nor 'prompt' and "
           "'completion', nor 'text'{}",
           where, document ? "" : advice_for(record));
  return std::move(*document);
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
