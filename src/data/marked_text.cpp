#include "data/marked_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.hpp"

namespace llamesh::data {
namespace {

/// Returns a token's text.
std::string shown_token(const tokenizer::Tokenizer& tokenizer, std::string_view text,
                        std::int32_t id) {
  if (text.empty() && tokenizer.bytes_of(id).empty()) return fmt::format("<{}>", id);
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\n\t", at), text.size());
    shown += printable(text.substr(at, end - at));
    if (end < text.size()) shown += text[end];
    at = end + 1;
  }
  return shown;
}

}  // namespace

std::string marked_text(const tokenizer::Tokenizer& tokenizer, const EncodedDocument& document,
                        std::string_view begin, std::string_view end) {
  const auto& edges = document.masked_ranges;
  std::string shown;
  tokenizer::TextStream text(tokenizer);
  bool in_loss = false;
  const auto mark = [&](bool now) {
    if (now != in_loss) shown += now ? begin : end;
    in_loss = now;
  };
  for (std::size_t i = 0; i < document.ids.size(); ++i) {
    const auto passed = std::ranges::upper_bound(edges, static_cast<std::int64_t>(i));
    mark((passed - edges.begin()) % 2 == 0);
    shown += shown_token(tokenizer, text.push(document.ids[i]), document.ids[i]);
  }
  shown += printable(text.finish());
  mark(false);
  return shown;
}

}  // namespace llamesh::data
