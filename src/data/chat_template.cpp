#include "data/chat_template.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/utf8.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {
namespace {

constexpr std::array<std::pair<std::string_view, ChatTemplate>, 12> template_names = {{
    {"plain", ChatTemplate::plain},
    {"llama2", ChatTemplate::llama2},
    {"llama3", ChatTemplate::llama3},
    {"llama3.1", ChatTemplate::llama3_1},
    {"chatml", ChatTemplate::chatml},
    {"qwen2", ChatTemplate::qwen2},
    {"qwen2.5", ChatTemplate::qwen2_5},
    {"smollm2", ChatTemplate::smollm2},
    {"mistral-v0", ChatTemplate::mistral_v0},
    {"mistral-v1", ChatTemplate::mistral_v1},
    {"mistral-v3", ChatTemplate::mistral_v3},
    {"zephyr", ChatTemplate::zephyr},
}};

std::uint64_t hash_of_text(const std::string& text) {
  return hash_of(text.data(), text.size());
}

/// Document under construction.
class ChatWriter {
 public:
  void text(std::string_view text) { add(SegmentKind::content, text, false); }
  void token(std::string_view name) { add(SegmentKind::token, name, false); }
  void bos() { add(SegmentKind::bos, "", false); }
  void eos() { add(SegmentKind::eos, "", false); }
  void answer(std::string_view text) { add(SegmentKind::content, text, true); }
  void end_answer(std::string_view token) { add(SegmentKind::token, token, true); }
  void end_answer() { add(SegmentKind::eos, "", true); }

  Document take() { return std::move(document_); }

 private:
  /// Joins neighboring texts, so that they are tokenized together.
  void add(SegmentKind kind, std::string_view text, bool in_loss) {
    auto& segments = document_.segments;
    if (kind == SegmentKind::content && text.empty()) return;
    if (kind == SegmentKind::content && !segments.empty() && segments.back().kind == kind &&
        segments.back().in_loss == in_loss)
      segments.back().text += text;
    else
      segments.push_back({std::string(text), in_loss, false, kind});
  }

  Document document_{.segments = {}, .has_special_tokens = true};
};

/// Returns a whole conversation's system message, and removes it.
std::optional<std::string_view> take_system(std::span<const ChatMessage>& messages) {
  if (messages.front().role != "system") return std::nullopt;
  const std::string_view content = messages.front().content;
  messages = messages.subspan(1);
  return content;
}

bool is_assistant(const ChatMessage& message) {
  return message.role == "assistant";
}

/// Returns true for what Python's str.isspace() accepts.
bool is_python_space(std::uint32_t code) {
  return (code >= 0x1C && code <= 0x1F) || is_white_space(code);
}

/// Returns valid UTF-8 without white space at its ends, like Python's str.strip().
std::string_view strip(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(text.substr(at)), 1);
    if (!is_python_space(code_point(text.substr(at, length)))) {
      begin = std::min(begin, at);
      end = at + length;
    }
    at += length;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

/// Writes llamesh's own form, with BOS and EOS around the document as around any other.
Document render_plain(std::span<const ChatMessage> messages) {
  Document document;
  std::string prompt;
  for (const ChatMessage& message : messages) {
    prompt += "<|" + message.role + "|>\n";
    if (!is_assistant(message)) {
      prompt += message.content + '\n';
      continue;
    }
    document.segments.push_back({std::move(prompt), false, false, SegmentKind::content});
    document.segments.push_back({message.content, true, true, SegmentKind::content});
    prompt.clear();
  }
  return document;
}

void write_llama2(ChatWriter& out, std::span<const ChatMessage> messages) {
  const auto system = take_system(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (is_assistant(messages[i])) {
      out.answer(fmt::format(" {} ", strip(messages[i].content)));
      out.end_answer();
      continue;
    }
    std::string content = messages[i].content;
    if (i == 0 && system) content = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n{}", *system, content);
    out.bos();
    out.text(fmt::format("[INST] {} [/INST]", strip(content)));
  }
}

void write_llama3(ChatWriter& out, std::span<const ChatMessage> messages, std::string_view dates) {
  const auto turn = [&](std::string_view role, std::string_view content) {
    out.token("<|start_header_id|>");
    out.text(role);
    out.token("<|end_header_id|>");
    out.text("\n\n");
    const bool in_loss = role == "assistant";
    in_loss ? out.answer(content) : out.text(content);
    in_loss ? out.end_answer("<|eot_id|>") : out.token("<|eot_id|>");
  };
  out.bos();
  if (!dates.empty()) {
    const auto system = take_system(messages);
    turn("system", std::string(dates) + std::string(system ? strip(*system) : ""));
  }
  for (const ChatMessage& message : messages) turn(message.role, strip(message.content));
}

void write_chatml(ChatWriter& out, std::span<const ChatMessage> messages, std::string_view system) {
  const auto turn = [&](std::string_view role, std::string_view content) {
    out.token("<|im_start|>");
    out.text(std::string(role) + "\n");
    const bool in_loss = role == "assistant";
    in_loss ? out.answer(content) : out.text(content);
    in_loss ? out.end_answer("<|im_end|>") : out.token("<|im_end|>");
    out.text("\n");
  };
  if (!system.empty() && messages.front().role != "system") turn("system", system);
  for (const ChatMessage& message : messages) turn(message.role, message.content);
}

void write_mistral(ChatWriter& out, std::span<const ChatMessage> messages,
                   ChatTemplate chat_template) {
  using enum ChatTemplate;
  const auto system = take_system(messages);
  out.bos();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& content = messages[i].content;
    if (is_assistant(messages[i])) {
      if (chat_template != mistral_v0) out.answer(" ");
      out.answer(chat_template == mistral_v3 ? strip(content) : content);
      out.end_answer();
    } else if (chat_template == mistral_v3) {
      out.token("[INST]");
      out.text(" " + content);
      out.token("[/INST]");
    } else {
      out.text(chat_template == mistral_v1 ? " [INST] " : "[INST] ");
      if (i == 0 && system) out.text(std::string(*system) + "\n\n");
      out.text(content + " [/INST]");
    }
  }
}

void write_zephyr(ChatWriter& out, std::span<const ChatMessage> messages) {
  for (const ChatMessage& message : messages) {
    out.text("<|" + message.role + "|>\n");
    is_assistant(message) ? out.answer(message.content) : out.text(message.content);
    is_assistant(message) ? out.end_answer() : out.eos();
    out.text("\n");
  }
}

bool drops_system(ChatTemplate chat_template) {
  return chat_template == ChatTemplate::mistral_v0 || chat_template == ChatTemplate::mistral_v3;
}

bool is_built_in(ChatTemplate chat_template) {
  return chat_template != ChatTemplate::automatic && chat_template != ChatTemplate::jinja;
}

/// Returns a text up to its first white space, without any before it.
std::string first_word(std::string_view text) {
  constexpr std::string_view space = " \n";
  text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
  return std::string(text.substr(0, text.find_first_of(space)));
}

}  // namespace

std::span<const std::pair<std::string_view, ChatTemplate>> chat_template_names() {
  return template_names;
}

EnumNames<ChatTemplate> enum_names(ChatTemplate) {
  EnumNames<ChatTemplate> result{
      {{"auto", ChatTemplate::automatic}, {"jinja", ChatTemplate::jinja}}};
  const auto templates = chat_template_names();
  result.words.insert(result.words.end(), templates.begin(), templates.end());
  return result;
}

std::string_view name_of(ChatTemplate chat_template) {
  if (chat_template == ChatTemplate::jinja) return "jinja";
  const auto* const found = std::ranges::find(template_names, chat_template,
                                              &decltype(template_names)::value_type::second);
  return found == template_names.end() ? "auto" : found->first;
}

Document render(ChatTemplate chat_template, std::span<const ChatMessage> messages,
                const LineNumber& where) {
  using enum ChatTemplate;
  if (chat_template == plain) return render_plain(messages);
  validate(!drops_system(chat_template) || messages.front().role != "system",
           "{}: the chat template {} has no place for a system message before the assistant's "
           "turns; move its text to the start of the first user message",
           where, name_of(chat_template));
  ChatWriter out;
  switch (chat_template) {
    case llama2:
      write_llama2(out, messages);
      break;
    case llama3:
      write_llama3(out, messages, "");
      break;
    case llama3_1:
      write_llama3(out, messages,
                   "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
      break;
    case chatml:
      write_chatml(out, messages, "");
      break;
    case qwen2:
      write_chatml(out, messages, "You are a helpful assistant.");
      break;
    case qwen2_5:
      write_chatml(out, messages,
                   "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
      break;
    case smollm2:
      write_chatml(out, messages,
                   "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
      break;
    case mistral_v0:
    case mistral_v1:
    case mistral_v3:
      write_mistral(out, messages, chat_template);
      break;
    case zephyr:
      write_zephyr(out, messages);
      break;
    case automatic:
    case jinja:
    case plain:
      expects(false, "the chat template {}", name_of(chat_template));
  }
  return out.take();
}

std::string turn_end(ChatTemplate chat_template) {
  if (!is_built_in(chat_template) || chat_template == ChatTemplate::plain) return "";
  const std::vector<ChatMessage> messages{{"user", "a"}, {"assistant", "b"}};
  const std::string nowhere;
  const auto document = render(chat_template, messages, {nowhere, 0});
  const auto last = std::ranges::find_if(document.segments.rbegin(), document.segments.rend(),
                                         [](const auto& segment) { return segment.in_loss; });
  return last->kind == SegmentKind::token ? last->text : "";
}

ChatOpening opening(ChatTemplate chat_template) {
  if (!is_built_in(chat_template) || chat_template == ChatTemplate::plain) return {};
  ChatOpening result;
  const std::string nowhere;
  std::vector<ChatMessage> messages{{"system", "a"}, {"user", "b"}, {"assistant", "c"}};
  if (drops_system(chat_template)) messages.erase(messages.begin());
  for (; !is_assistant(messages.front()); messages.erase(messages.begin())) {
    const auto segments = render(chat_template, messages, {nowhere, 0}).segments;
    result.bos = segments.front().kind == SegmentKind::bos;
    result.words.push_back(first_word(segments.at(result.bos ? 1 : 0).text));
  }
  return result;
}

ConversationOptions conversation_options(const DataOptions& options) {
  ConversationOptions result{.chat_template = options.chat_template,
                             .loss_on = options.loss_on,
                             .reasoning = options.reasoning,
                             .columns = options.columns,
                             .pairs = options.pairs};
  const bool is_by_folder = options.chat_template == ChatTemplate::automatic ||
                            options.chat_template == ChatTemplate::jinja;
  if (!is_by_folder || options.recorded_template) return result;
  const auto jinja = tokenizer::chat_template_text(options.tokenizer);
  if (!jinja) {
    validate(options.chat_template == ChatTemplate::automatic,
             "data.chat_template is jinja, but the tokenizer '{}' has no chat template beside it; "
             "put chat_template.jinja there, or set it to auto",
             options.tokenizer);
    result.chat_template = ChatTemplate::plain;
    return result;
  }
  if (options.chat_template == ChatTemplate::jinja) return result;
  const auto found = find_chat_template(hash_of_text(jinja->text));
  result.chat_template = found.value_or(ChatTemplate::jinja);
  return result;
}

std::optional<tokenizer::ChatTemplateText> jinja_template_of(const DataOptions& options) {
  if (conversation_options(options).chat_template != ChatTemplate::jinja) return std::nullopt;
  if (!options.recorded_template) return tokenizer::chat_template_text(options.tokenizer);
  const auto& [file, hash] = *options.recorded_template;
  for (auto& found : {tokenizer::chat_template_text(options.tokenizer, file),
                      tokenizer::chat_template_text(options.tokenizer)})
    if (found && hash_of_text(found->text) == hash) return found;
  fail(
      ExitCode::bad_input,
      "the chat template that the model was trained with (hash {}) is neither in {} nor beside the "
      "tokenizer '{}'; put its text into the former",
      to_hex(hash), file, options.tokenizer);
}

std::string name_with_hash(const DataOptions& options) {
  std::string name(name_of(conversation_options(options).chat_template));
  if (const auto jinja = jinja_template_of(options))
    name += ":" + to_hex(hash_of_text(jinja->text));
  return name;
}

void use_recorded_template(DataOptions& options, const std::string& name, const std::string& file) {
  const auto colon = name.find(':');
  const auto known = value_of_name<ChatTemplate>(name.substr(0, colon));
  if (!known) return;
  options.chat_template = *known;
  if (*known == ChatTemplate::jinja && colon != name.npos)
    options.recorded_template = {.file = file, .hash = from_hex(name.substr(colon + 1))};
}

}  // namespace llamesh::data
