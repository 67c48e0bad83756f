#include "data/record_fields.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "data/jinja_template.hpp"

namespace llamesh::data {
namespace {

using Json = nlohmann::ordered_json;

/// Keys of a message with which other trainers take a turn out of the loss: OpenAI's weight,
/// axolotl's train and training, ms-swift's loss and loss_scale, and names in use elsewhere.
constexpr std::array<std::string_view, 8> loss_keys = {
    "train", "training", "train_on_turn", "trainable", "loss", "loss_mask", "loss_scale", "weight"};

/// A field that is not read although it belongs to what a model would learn, and what to do.
struct UnreadField {
  std::string_view name;
  std::string_view advice;
};

constexpr std::string_view tools_advice = "tools are not supported, remove the record";
constexpr std::string_view media_advice = "only text is supported, remove the record";
constexpr std::string_view context_advice =
    "it is not read; write the conversation as 'messages', with a first message whose role is "
    "system, or remove the field";
constexpr std::string_view reasoning_advice =
    "it would not be trained; write it into 'content', or leave it out with data.reasoning=drop "
    "(--reasoning drop)";

constexpr std::array record_fields = std::to_array<UnreadField>({{"tools", tools_advice},
                                                                 {"functions", tools_advice},
                                                                 {"system", context_advice},
                                                                 {"history", context_advice},
                                                                 {"images", media_advice},
                                                                 {"image", media_advice},
                                                                 {"audios", media_advice},
                                                                 {"audio", media_advice},
                                                                 {"videos", media_advice},
                                                                 {"video", media_advice}});
constexpr std::array message_fields = std::to_array<UnreadField>(
    {{"tool_calls", tools_advice},
     {"function_call", tools_advice},
     {"images", media_advice},
     {"image", media_advice},
     {"audios", media_advice},
     {"audio", media_advice},
     {"videos", media_advice},
     {"video", media_advice},
     {"train_detail",
      "a turn is in the loss as a whole or not at all; set 'train' to true or false instead"}});
constexpr std::string_view tool_fields[] = {"tools", "functions", "tool_calls", "function_call"};
/// What transformers calls reasoning, the first that is there.
constexpr std::string_view reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};
constexpr std::array reasoning_fields =
    std::to_array<UnreadField>({{"reasoning_content", reasoning_advice},
                                {"reasoning", reasoning_advice},
                                {"reasoning_details", reasoning_advice},
                                {"thinking", reasoning_advice}});

/// Fields that make a document, by their names in records.
enum class Field : std::uint8_t {
  none,
  text,
  instruction,
  input,
  output,
  response,
  context,
  prompt,
  completion,
  system,
  messages,
  chosen,
  rejected,
};
using enum Field;
constexpr std::pair<std::string_view, Field> field_names[] = {
    {"text", text},         {"instruction", instruction}, {"input", input},
    {"output", output},     {"response", response},       {"context", context},
    {"prompt", prompt},     {"completion", completion},   {"system", system},
    {"messages", messages}, {"conversations", messages},  {"conversation", messages},
    {"chosen", chosen},     {"rejected", rejected}};

/// Returns the role that ShareGPT's `from` names.
std::string role_of(std::string from) {
  for (const auto& [name, role] : {std::pair("human", "user"),
                                   {"gpt", "assistant"},
                                   {"chatgpt", "assistant"},
                                   {"bot", "assistant"}})
    if (from == name) return role;
  return from;
}

/// Returns true if the template reads this field of a record or a message, which others do not.
bool is_for_template(const ConversationOptions& options, std::string_view field) {
  const auto is_one_of = [&](const auto& names) {
    return std::ranges::find(names, field) != std::end(names);
  };
  if (!options.jinja) return false;
  if (is_one_of(tool_fields)) return options.jinja->names(field);
  return is_one_of(reasoning_names) &&
         (options.jinja->names("reasoning_content") || options.jinja->names("thinking"));
}

/// Returns a list, or what a text holds as JSON: data files have tools in both forms.
Json list_in(const Json& value, const std::string& name) {
  if (!value.is_string()) return value;
  return parse_json_object(fmt::format(R"({{"list": {}}})", value.get_ref<const std::string&>()),
                           name)
      .at("list");
}

/// Gives a message's reasoning the names under which templates look for it, or drops it.
void share_reasoning(Json& message, Reasoning reasoning) {
  const auto* const found = std::ranges::find_if(
      reasoning_names, [&](std::string_view name) { return message.contains(name); });
  if (found == std::end(reasoning_names)) return;
  const auto text = message.at(std::string(*found));
  if (reasoning == Reasoning::drop)
    for (const auto& field : reasoning_fields) message.erase(std::string(field.name));
  else
    for (const auto* name : {"reasoning_content", "thinking"})
      if (!message.contains(name)) message[name] = text;
}

/// Returns a message as a template reads it.
Json whole_message(const Json& message, const std::string& name,
                   const ConversationOptions& options) {
  Json whole = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (value.is_null() || std::ranges::find(loss_keys, key) != loss_keys.end()) continue;
    if (key == "from")
      whole["role"] = role_of(value);
    else if (key == "tool_calls")
      whole[key] = list_in(value, name);
    else
      whole[key == "value" ? "content" : key] = value;
  }
  share_reasoning(whole, options.reasoning);
  return whole;
}

/// A parser handler that takes the known fields and ignores all else.
class Handler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(const LineNumber& where, const ConversationOptions& options)
      : where_(where), options_(options), columns_(options.columns) {}
  RecordFields take() { return std::move(fields_); }

  bool null() override {
    if (depth_ == 0) refuse_root();
    if (depth_ == 2 && list_ != nullptr) refuse("a list of objects");
    note_unread(depth_ - 1);
    return true;
  }
  bool boolean(bool value) override { return number(value ? 1 : 0); }
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
      if (is_loss_key()) refuse_loss(fmt::format("'{}'", excerpt(value)));
      if (!value.empty()) note_unread(depth_);  // tools may be a list written as a string
      return other();
    }
    validate(!field->has_value(), "{}: '{}' appears twice", where_, key_);
    *field = in_message() && key_ == "from" ? role_of(std::move(value)) : std::move(value);
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1 || in_message()) key_ = name;
    if (depth_ == 1) field_ = field_of(key_);
    return true;
  }
  bool start_object(std::size_t /*size*/) override {
    if (depth_ == 2 && list_ != nullptr)
      list_->emplace_back();
    else if (depth_ > 0)
      other();
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 2 && list_ != nullptr) {
      if (options_.jinja && !message().content) message().content = "";
      validate(message().role && message().content,
               "{}: message {} has no '{}' (ShareGPT: '{}') with a text", where_, list_->size(),
               message().role ? "content" : "role", message().role ? "value" : "from");
      key_ = list_name_;
    }
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (auto* const list = depth_ == 1 ? list_of(field_) : nullptr) {
      validate(!*list, "{}: '{}' appears twice", where_, key_);
      list_ = &list->emplace();
      list_name_ = key_;
      key_of(field_) = key_;
    } else {
      other();
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (--depth_ == 1) list_ = nullptr;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    const auto problem = wrong_string(error, at(position));
    if (!problem.empty()) fail(ExitCode::bad_input, "{}: {}", where_, problem);
    refuse_json(position);
  }
  [[noreturn]] void refuse_json(std::size_t position) const {
    fail(ExitCode::bad_input, "{}: not valid JSON at {}{}", where_, at(position),
         where_.record == 0 ? "; each line holds one object" : "");
  }

 private:
  std::string at(std::size_t position) const {
    return fmt::format("byte {} of the {}", position, where_.record == 0 ? "line" : "record");
  }
  bool in_message() const { return depth_ == 3 && list_ != nullptr; }
  MessageFields& message() { return list_->back(); }

  /// Returns the field that a name in the root object stands for.
  Field field_of(std::string_view name) const {
    for (const auto& [column, member] : record_columns)
      if (!(columns_.*member).empty() && columns_.*member == name) return named(column);
    const auto field = named(name);
    for (const auto& [column, member] : record_columns)
      if (!(columns_.*member).empty() && named(column) == field) return none;
    return field;
  }
  static Field named(std::string_view name) {
    for (const auto& [known, field] : field_names)
      if (known == name) return field;
    return none;
  }

  /// Returns the destination for a list of messages, or null.
  std::optional<Messages>* list_of(Field field) {
    return field == messages     ? &fields_.messages
           : field == prompt     ? &fields_.prompt_messages
           : field == completion ? &fields_.completion_messages
           : field == chosen     ? &fields_.chosen_messages
           : field == rejected   ? &fields_.rejected_messages
                                 : nullptr;
  }
  std::string& key_of(Field list) {
    return list == messages     ? fields_.messages_key
           : list == prompt     ? fields_.prompt_key
           : list == completion ? fields_.completion_key
           : list == chosen     ? fields_.chosen_key
                                : fields_.rejected_key;
  }
  /// Returns the destination for a string at this place, or null.
  std::optional<std::string>* target() {
    if (depth_ == 1) {
      const std::pair<Field, std::optional<std::string>*> known[] = {
          {text, &fields_.text},         {instruction, &fields_.instruction},
          {input, &fields_.input},       {output, &fields_.output},
          {response, &fields_.response}, {context, &fields_.context},
          {prompt, &fields_.prompt},     {completion, &fields_.completion},
          {system, &fields_.system},     {chosen, &fields_.chosen},
          {rejected, &fields_.rejected}};
      for (const auto& [name, field] : known)
        if (field_ == name) return field;
    }
    if (in_message()) {
      if (key_ == "role" || key_ == "from") return &message().role;
      if (key_ == "content" || key_ == "value") return &message().content;
    }
    return nullptr;
  }
  bool is_loss_key() const {
    return in_message() && std::ranges::find(loss_keys, key_) != loss_keys.end();
  }
  bool number(double value) {
    if (is_loss_key()) return set_in_loss(value);
    if (value != 0) note_unread(depth_);
    return other();
  }
  bool set_in_loss(double value) {
    if (value != 0 && value != 1) refuse_loss(fmt::format("{}", value));
    const bool in_loss = value == 1;
    validate(!message().in_loss || *message().in_loss == in_loss,
             "{}: message {} is in the loss by '{}', but not by '{}'; keep one of them", where_,
             list_->size(), in_loss ? key_ : message().loss_key,
             in_loss ? message().loss_key : key_);
    message().in_loss = in_loss;
    message().loss_key = key_;
    return true;
  }
  /// Handles a value that is not a string, or an unexpected string.
  bool other() {
    if (depth_ == 0) refuse_root();
    if (is_loss_key()) refuse_loss("with a list or an object");
    note_unread(depth_ - 1);
    // What only some forms read may have any type in the others.
    const bool is_read = depth_ != 1 || field_ <= output;
    if (is_read && target() != nullptr) refuse("a string");
    if ((depth_ == 1 && field_ == messages) || (depth_ == 2 && list_ != nullptr))
      refuse("a list of objects");
    return true;
  }
  /// Notes or refuses a field that is not read, if this is a value of the object at `depth`, or
  /// inside one: an empty list or object is as good as none.
  void note_unread(int depth) {
    if (is_for_template(options_, key_)) return;
    if (depth == 1)
      if (const auto* const field = find(record_fields)) {
        fields_.unread = field->name;
        fields_.advice = field->advice;
      }
    if (depth != 3 || list_ == nullptr) return;
    refuse_message(find(message_fields));
    if (options_.reasoning == Reasoning::refuse) refuse_message(find(reasoning_fields));
  }
  template <class Fields>
  const UnreadField* find(const Fields& fields) const {
    const auto found = std::ranges::find(fields, key_, &UnreadField::name);
    return found == fields.end() ? nullptr : &*found;
  }
  void refuse_message(const UnreadField* field) const {
    if (field == nullptr) return;
    fail(ExitCode::bad_input, "{}: message {} has '{}'; {}", where_, list_->size(), field->name,
         field->advice);
  }
  [[noreturn]] void refuse_loss(std::string_view value) const {
    fail(ExitCode::bad_input,
         "{}: message {} has '{}' {}, but a turn is in the loss or not: write true or 1, or false "
         "or 0; to weigh records, give files weights in data.train",
         where_, list_->size(), key_, value);
  }
  [[noreturn]] void refuse(std::string_view expected) const {
    fail(ExitCode::bad_input, "{}: '{}' must be {}", where_, key_, expected);
  }
  [[noreturn]] void refuse_root() const {
    fail(ExitCode::bad_input, "{}: expected one JSON object, {{...}}", where_);
  }

  LineNumber where_;
  const ConversationOptions& options_;
  RecordFields fields_;
  const RecordColumns& columns_;
  int depth_ = 0;              ///< open containers
  Messages* list_ = nullptr;   ///< the list that is open
  std::string list_name_;      ///< and its key
  std::string key_;            ///< last key in the root object, or in a message
  Field field_ = Field::none;  ///< for the last key in the root object
};

}  // namespace

RecordFields read_fields(std::string_view record, const LineNumber& where,
                         const ConversationOptions& options) {
  Handler handler(where, options);
  // The parser would treat a NUL as the end of the text.
  if (const auto nul = record.find('\0'); nul != record.npos) handler.refuse_json(nul + 1);
  nlohmann::json::sax_parse(record.begin(), record.end(), &handler);
  return handler.take();
}

Json whole_conversation(std::string_view record, const RecordFields& fields, std::size_t count,
                        const LineNumber& where, const ConversationOptions& options) {
  const auto name = fmt::format("{}", where);
  const Json whole = parse_json_object(std::string(record), name);
  Json conversation{{"messages", Json::array()}};
  auto& messages = conversation["messages"];
  if (fields.system && !fields.system->empty())
    messages.push_back({{"role", "system"}, {"content", *fields.system}});
  for (const auto* key : {&fields.messages_key, &fields.prompt_key, &fields.completion_key}) {
    if (key->empty()) continue;
    for (const auto& message : whole.at(*key))
      messages.push_back(whole_message(message, name, options));
    if (key == &fields.messages_key) break;  // then the others are no lists of its messages
  }
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(count), messages.end());
  if (const auto tools = whole.find("tools"); tools != whole.end() && options.jinja->names("tools"))
    conversation["tools"] = list_in(*tools, name);
  return conversation;
}

}  // namespace llamesh::data
