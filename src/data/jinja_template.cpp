#include "data/jinja_template.hpp"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/line_process.hpp"
#include "core/text.hpp"
#include "data/render_chats.hpp"
#include "tokenizer/object_pool.hpp"

namespace llamesh::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view advice =
    "install Debian's python3-jinja2 (pip: jinja2), or set LLAMESH_PYTHON to a python3 that has "
    "it; data for training can be tokenized elsewhere (llamesh tokenize --output)";

std::string python() {
  const char* const chosen = std::getenv("LLAMESH_PYTHON");
  return chosen == nullptr || *chosen == '\0' ? "python3" : chosen;
}

/// Returns the first line for render_chats.py.
std::string first_line(const tokenizer::ChatTemplateText& text,
                       const tokenizer::Tokenizer& tokenizer) {
  Json control = Json::array(), separate = Json::array(), absorbing = Json::array();
  for (const auto& token : tokenizer.control_tokens()) {
    control.push_back(token.text);
    if (!token.found_in_text) separate.push_back(token.text);
    if (token.absorbs_space) absorbing.push_back(token.text);
  }
  return Json{{"template", text.text},
              {"tokens", text.tokens},
              {"control", std::move(control)},
              {"separate", std::move(separate)},
              {"absorbing", std::move(absorbing)}}
      .dump();
}

SegmentKind kind_of(const std::string& name) {
  if (name == "token") return SegmentKind::token;
  return name == "content" ? SegmentKind::content : SegmentKind::text;
}

}  // namespace

/// The processes, and how to start another.
class JinjaTemplate::Renderers {
 public:
  Renderers(std::string file, std::string first_line)
      : file_(std::move(file)), first_line_(std::move(first_line)) {}

  /// Returns the answer to a line.
  Json ask(const std::string& line) {
    const auto process = idle_.acquire([this] { return start(); });
    return parsed(process->ask(line));
  }

 private:
  std::unique_ptr<LineProcess> start() const {
    auto process = start_python();
    const auto answer = parsed(process->ask(first_line_));
    if (!answer.contains("error")) return process;
    const auto line = answer.at("line").get<int>();
    validate(line >= 0, "the chat template in '{}' is written with Jinja, but {}; {}", file_,
             answer.at("error").get<std::string>(), advice);
    fail(ExitCode::bad_input, "the chat template in '{}', line {}: {}", file_, line,
         answer.at("error").get<std::string>());
  }

  std::unique_ptr<LineProcess> start_python() const {
    try {
      return std::make_unique<LineProcess>(std::vector<std::string>{python(), "-c", render_chats});
    } catch (const Error& error) {
      fail(error.code(), "the chat template in '{}' is written with Jinja, but {}; {}", file_,
           error.what(), advice);
    }
  }

  Json parsed(const std::string& answer) const {
    validate(!answer.empty(),
             "the chat template in '{}' is written with Jinja, but {} has ended; {}", file_,
             python(), advice);
    return Json::parse(answer);
  }

  std::string file_, first_line_;
  tokenizer::ObjectPool<LineProcess> idle_;
};

JinjaTemplate::JinjaTemplate(tokenizer::ChatTemplateText text,
                             const tokenizer::Tokenizer& tokenizer)
    : renderers_(std::make_unique<Renderers>(text.file, first_line(text, tokenizer))),
      text_(std::move(text)) {}
JinjaTemplate::~JinjaTemplate() = default;

bool JinjaTemplate::names(std::string_view word) const {
  return text_.text.find(word) != std::string::npos;
}

std::vector<ChatPart> JinjaTemplate::render(const Json& chat, const LineNumber& where) const {
  validate(text_.is_text,
           "{}: the chat template in '{}' is not a text, or empty; set data.chat_template", where,
           text_.file);
  const auto answer = renderers_->ask(chat.dump());
  if (answer.contains("error")) {
    const auto line = answer.at("line").get<int>();
    fail(ExitCode::bad_input, "{}: the chat template in '{}'{}: {}", where, text_.file,
         line > 0 ? fmt::format(", line {}", line) : "",
         printable(answer.at("error").get<std::string>()));
  }
  std::vector<ChatPart> parts;
  for (const auto& part : answer.at("parts"))
    parts.push_back({{part.at(0).get<std::string>(), false, false, kind_of(part.at(1))},
                     part.at(2).get<int>()});
  return parts;
}

}  // namespace llamesh::data
