#include "tokenizer/tokenizer.hpp"

#include <filesystem>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "tokenizer/json_object.hpp"
#include "tokenizer/tokenizer_config.hpp"

namespace llamesh::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t max_template_bytes = 16 << 20;

ChatTemplateText template_in(const std::string& file, const nlohmann::json& value) {
  const bool is_text = value.is_string() && !value.get_ref<const std::string&>().empty();
  return {file, is_text ? value.get<std::string>() : value.dump(), is_text};
}

std::optional<ChatTemplateText> template_in_config(const std::string& name,
                                                   const std::string& text) {
  const auto parsed = parse_json(text, name);
  const JsonObject config(name, parsed);
  const auto* const member = config.find("chat_template");
  if (member == nullptr) return std::nullopt;
  if (member->is_array())
    for (const auto& entry : *member)
      if (entry.is_object() && entry.value("name", nlohmann::json()) == "default")
        return template_in(name, entry.value("template", nlohmann::json()));
  return template_in(name, *member);
}

fs::path folder_of(const std::string& tokenizer) {
  std::error_code ignored;
  const fs::path path(tokenizer);
  return fs::is_directory(path, ignored) ? path : path.parent_path();
}

}  // namespace

std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer,
                                                   const std::string& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  auto found = template_in(file, read_file(file, max_template_bytes));
  const auto config = (folder_of(tokenizer) / "tokenizer_config.json").string();
  found.tokens = parse_tokenizer_config(config, read_companion_files(config)).named;
  return found;
}

std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer) {
  if (tokenizer == "byte") return std::nullopt;
  const auto folder = folder_of(tokenizer);
  if (auto found = chat_template_text(tokenizer, (folder / "chat_template.jinja").string()))
    return found;
  const auto config = (folder / "tokenizer_config.json").string();
  const auto files = read_companion_files(config);
  if (files.tokenizer_config.empty()) return std::nullopt;
  auto found = template_in_config(config, files.tokenizer_config);
  if (found) found->tokens = parse_tokenizer_config(config, files).named;
  return found;
}

}  // namespace llamesh::tokenizer
