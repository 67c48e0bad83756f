#include "tokenizer/tokenizer.hpp"

#include <filesystem>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "tokenizer/json_object.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace llamesh::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t max_template_bytes = 16 << 20;

/// Returns the template; if the value is not one, its JSON, which equals no known template.
std::optional<std::string> template_in_config(const std::string& name, const std::string& text) {
  const auto parsed = parse_json(text, name);
  const JsonObject config(name, parsed);
  const auto* const member = config.find("chat_template");
  if (member == nullptr) return std::nullopt;
  const auto text_of = [](const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  if (!member->is_array()) return text_of(*member);
  for (const auto& entry : *member)
    if (entry.is_object() && entry.value("name", nlohmann::json()) == "default")
      return text_of(entry.value("template", nlohmann::json()));
  return member->dump();
}

}  // namespace

std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer) {
  if (tokenizer == "byte") return std::nullopt;
  std::error_code ignored;
  const fs::path path(tokenizer);
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  if (const auto jinja = (folder / "chat_template.jinja").string(); fs::exists(jinja, ignored))
    return ChatTemplateText{jinja, read_file(jinja, max_template_bytes)};
  const auto config = (folder / "tokenizer_config.json").string();
  if (!fs::exists(config, ignored)) return std::nullopt;
  auto text = template_in_config(config, read_tokenizer_file(config));
  if (!text) return std::nullopt;
  return ChatTemplateText{config, std::move(*text)};
}

}  // namespace llamesh::tokenizer
