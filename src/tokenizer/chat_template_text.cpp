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

}  // namespace

std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer) {
  if (tokenizer == "byte") return std::nullopt;
  std::error_code ignored;
  const fs::path path(tokenizer);
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  const auto config = (folder / "tokenizer_config.json").string();
  const auto files = read_companion_files(config);
  ChatTemplateText found;
  if (const auto jinja = (folder / "chat_template.jinja").string(); fs::exists(jinja, ignored)) {
    found = template_in(jinja, read_file(jinja, max_template_bytes));
  } else {
    auto in_config = files.tokenizer_config.empty()
                         ? std::nullopt
                         : template_in_config(config, files.tokenizer_config);
    if (!in_config) return std::nullopt;
    found = std::move(*in_config);
  }
  found.tokens = parse_tokenizer_config(config, files).named;
  return found;
}

}  // namespace llamesh::tokenizer
