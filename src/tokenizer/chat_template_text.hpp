#pragma once

#include <optional>
#include <string>

namespace llamesh::tokenizer {

/// A Jinja template that turns conversations into text.
struct ChatTemplateText {
  std::string file;  ///< it came from
  std::string text;
};

/// Returns the template beside a tokenizer, as named for open_tokenizer(): chat_template.jinja, or
/// `chat_template` in tokenizer_config.json, a text or a list from which it takes the one named
/// "default". Anything else there is returned as its JSON: a text that is no template. Empty if
/// there is nothing. Throws a user error that names the file if it is no JSON object.
std::optional<ChatTemplateText> chat_template_text(const std::string& tokenizer);

}  // namespace llamesh::tokenizer
