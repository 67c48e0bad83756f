#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/jsonl.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::data {

/// A segment of a conversation, and the answer that it belongs to.
struct ChatPart {
  TextSegment segment;
  int answer = -1;  ///< counts the assistant's turns; -1: a prompt
};

/// A model's own Jinja template. Python's jinja2 renders with it (render_chats.py), in the sandbox
/// and with the settings of transformers' apply_chat_template, byte for byte the same text. Only
/// today's date is not: strftime_now gives 26 July 2024, so that a run's tokens stay the same.
///
/// Answers are what stands in {% generation %} blocks. Without these they are what a conversation
/// up to an answer has more than its prompt, up to the token that ends the turn. What users and
/// models wrote never becomes a control token. Thread-safe: each thread that renders at the same
/// time has a process of its own.
class JinjaTemplate {
 public:
  /// `tokenizer` is the one that encodes what it renders.
  JinjaTemplate(tokenizer::ChatTemplateText text, const tokenizer::Tokenizer& tokenizer);
  ~JinjaTemplate();

  /// Returns true if the template's text has this name of a field or a role.
  bool names(std::string_view word) const;

  /// Renders {"messages": [...], "tools": [...]}, with the last message an assistant's; with
  /// "prompt": true another's, and the text ends where the assistant has to answer. Throws a
  /// user error that begins with `where` and names the template's line if the template refuses the
  /// conversation or fails, or if its answers cannot be told apart; another if there is no python3
  /// or no jinja2, which names the Debian package.
  std::vector<ChatPart> render(const nlohmann::ordered_json& chat, const LineNumber& where) const;

 private:
  class Renderers;
  std::unique_ptr<Renderers> renderers_;
  tokenizer::ChatTemplateText text_;
};

}  // namespace llamesh::data
