#include "tokenizer/chat_template_text.hpp"

#include <filesystem>

#include "core/error.hpp"
#include "core/json.hpp"
#include "tokenizer/json_object.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace llamesh::tokenizer {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> template_in_config(const std::string& name, const std::string& text) {
  const auto parsed = parse_json(text, name);
  const JsonObject config(name, parsed);
  const auto* const member = config.find("chat_template");
  if (member == nullptr) return std::nullopt;
  if (!member->is_array()) return config.text("chat_template");
  const auto& list = config.array("chat_template");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonObject entry(fmt::format("{}[{}]", config.at("chat_template"), i), list[i]);
    if (entry.text("name") == "default") return entry.text("template");
  }
  return std::nullopt;
}

}  // namespace

std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer) {
  if (tokenizer == "byte") return std::nullopt;
  std::error_code ignored;
  const fs::path path(tokenizer);
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  if (const auto jinja = (folder / "chat_template.jinja").string(); fs::exists(jinja, ignored))
    return ChatTemplateText{jinja, read_tokenizer_file(jinja)};
  const auto config = (folder / "tokenizer_config.json").string();
  if (!fs::exists(config, ignored)) return std::nullopt;
  auto text = template_in_config(config, read_tokenizer_file(config));
  if (!text) return std::nullopt;
  return ChatTemplateText{config, std::move(*text)};
}

}  // namespace llamesh::tokenizer
